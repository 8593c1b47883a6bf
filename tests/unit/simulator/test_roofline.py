"""The directions in which a card's step times must move."""

import pytest

from autotune.simulator.core import SimulationResult, Workload, simulate


def run(
    model: str = "qwen3-8b", card: str = "h100", gpus: int = 8, load: Workload | None = None, **flags: object
) -> SimulationResult:
    load = load or Workload.closed_loop(32, 64, 512, 64)
    return simulate({"model": model, "max_model_len": 4096, **flags}, load, card=card, gpus=gpus)


def one(model: str = "qwen3-8b", **flags: object) -> float:
    """Milliseconds for one output token of a single stream."""
    return run(model, load=Workload.closed_loop(1, 1, 128, 128), **flags).tpot_percentile_s(50) * 1e3


def test_a_single_stream_is_bound_by_reading_the_weights():
    """16.4 GB at 3.35 TB/s is 4.9 ms; no engine is below that, a good one is within a half above it."""
    assert 4.9 < one() < 7.4


def test_eager_mode_costs_a_single_stream_much_and_a_long_prefill_little():
    assert one(enforce_eager=True) > 1.15 * one()
    prefill = Workload.closed_loop(4, 8, 3000, 1)
    eager, graphs = run(load=prefill, enforce_eager=True), run(load=prefill)
    assert eager.duration_s < 1.2 * graphs.duration_s


def test_a_batch_outside_the_captured_sizes_loses_the_graphs():
    inside, outside = one("smollm2-135m"), one("smollm2-135m", compilation_config={"cudagraph_mode": "NONE"})
    assert outside > 1.5 * inside
    many = Workload.closed_loop(48, 96, 64, 64)
    covered = run("smollm2-135m", load=many, max_cudagraph_capture_size=64)
    uncovered = run("smollm2-135m", load=many, max_cudagraph_capture_size=32)
    assert uncovered.duration_s > covered.duration_s


def test_fp8_is_faster_where_the_card_has_it():
    assert run(quantization="fp8").output_tokens_per_s > 1.1 * run().output_tokens_per_s
    fp8 = run(card="a100", load=Workload.closed_loop(8, 16, 2048, 4), quantization="fp8")
    assert fp8.duration_s > run(card="a100", load=Workload.closed_loop(8, 16, 2048, 4)).duration_s


@pytest.mark.parametrize(("slower", "faster"), [("l4", "a100"), ("a100", "h100"), ("h100", "h200")])
def test_cards_in_their_order(slower, faster):
    load = Workload.closed_loop(16, 32, 256, 64)
    model = "smollm2-135m" if slower == "l4" else "qwen3-8b"
    assert run(model, card=faster, load=load).duration_s < run(model, card=slower, load=load).duration_s


def test_tensor_parallel_shortens_latency_less_than_linearly():
    one_card, four = one("qwen3-32b"), one("qwen3-32b", tensor_parallel_size=4)
    assert 1.5 < one_card / four < 4


def test_data_parallel_raises_throughput_of_a_loaded_server():
    load = Workload.closed_loop(64, 128, 512, 64)
    assert run(load=load, data_parallel_size=2).output_tokens_per_s > 1.3 * run(load=load).output_tokens_per_s


def test_a_mixture_of_experts_reads_only_what_it_uses():
    """30 B parameters of which 3 B are active: a single stream is far faster than with a dense 32 B model."""
    assert one("qwen3-30b-a3b") < 0.5 * one("qwen3-32b")


def test_expert_parallel_pays_for_its_exchange():
    load = Workload.closed_loop(64, 64, 512, 32)
    tensor = run("qwen3-30b-a3b", load=load, tensor_parallel_size=4)
    expert = run("qwen3-30b-a3b", load=load, tensor_parallel_size=4, enable_expert_parallel=True)
    assert expert.duration_s > tensor.duration_s


def test_small_steps_trade_throughput_for_the_latency_of_running_streams():
    load = Workload.closed_loop(32, 64, 3000, 64)
    small, large = run(load=load, max_num_batched_tokens=512), run(load=load, max_num_batched_tokens=8192)
    assert small.output_tokens_per_s < large.output_tokens_per_s


def test_speculative_decoding_helps_a_single_stream():
    assert one(speculative_config={"method": "ngram", "num_speculative_tokens": 3}) < 0.7 * one()


def test_synchronous_scheduling_leaves_the_gpu_waiting():
    assert one("smollm2-135m", async_scheduling=False) > one("smollm2-135m")


def test_a_low_sequence_limit_queues():
    few, many = run(max_num_seqs=4), run(max_num_seqs=64)
    assert few.ttft_percentile_s(50) > 3 * many.ttft_percentile_s(50)
