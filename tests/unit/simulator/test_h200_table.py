"""The simulated figures against a real vLLM 0.26.0 on one H200 (GLM-4-9B shape, dummy weights, 1,024 tokens in,
256 out, closed loop; 3 requests for each stream at concurrency 64 and 128, 2 at 256).

Everything must be within 25 %, with one exception: the median TTFT at concurrency 64 with 2,048 batched tokens. On the
real engine that figure is bimodal, 244 to 503 ms between runs of the same configuration, because it depends on who
arrives behind whose prefill; the simulator has to lie in that range instead.
"""

import pytest

from autotune.simulator.core import SimulationResult, Workload, simulate

DEFAULTS = {"max_model_len": 8192}
PUBLISHED = {"max_model_len": 32768, "max_num_seqs": 128, "max_num_batched_tokens": 32768}
SMALL_STEPS = {"max_model_len": 8192, "max_num_seqs": 256, "max_num_batched_tokens": 2048}
FP8 = {
    "max_model_len": 8192, "max_num_seqs": 256, "max_num_batched_tokens": 4096,
    "quantization": "fp8", "enable_prefix_caching": False,
}  # fmt: skip
FP8_KV = SMALL_STEPS | {"quantization": "fp8", "kv_cache_dtype": "fp8"}

# configuration, concurrency, output tokens/s, TTFT p50 ms, TTFT p95 ms
MEASURED = [
    (DEFAULTS, 64, 4400, 893, 1742),
    (DEFAULTS, 128, 5346, 2242, 3751),
    (DEFAULTS, 256, 5383, 4279, 7494),
    (PUBLISHED, 64, 4295, 1312, 1969),
    (PUBLISHED, 128, 5376, 3064, 3953),
    (PUBLISHED, 256, 5391, 7619, 10033),
    (SMALL_STEPS, 64, 4410, None, 1746),
    (SMALL_STEPS, 128, 5376, 1207, 3596),
    (SMALL_STEPS, 256, 5388, 3467, 7808),
    (FP8, 64, 6300, 709, 1186),
    (FP8, 128, 7716, 1379, 2370),
    (FP8, 256, 6973, 2358, 4799),
    (FP8_KV, 64, 6294, 686, 1238),
    (FP8_KV, 128, 7533, 1367, 2368),
    (FP8_KV, 256, 6780, 2259, 5689),
]
TOLERANCE = 0.25
BIMODAL_MS = (244, 503)


def run(flags: dict[str, object], concurrency: int) -> SimulationResult:
    requests = concurrency * (2 if concurrency == 256 else 3)
    return simulate({"model": "glm-4-9b", **flags}, Workload.closed_loop(concurrency, requests, 1024, 256), card="h200")


@pytest.mark.parametrize(("flags", "concurrency", "throughput", "p50", "p95"), MEASURED)
def test_within_a_quarter_of_the_real_card(flags, concurrency, throughput, p50, p95):
    result = run(flags, concurrency)
    assert result.output_tokens_per_s == pytest.approx(throughput, rel=TOLERANCE)
    assert result.ttft_percentile_s(95) * 1e3 == pytest.approx(p95, rel=TOLERANCE)
    median = result.ttft_percentile_s(50) * 1e3
    if p50 is None:
        assert BIMODAL_MS[0] <= median <= BIMODAL_MS[1]
    else:
        assert median == pytest.approx(p50, rel=TOLERANCE)


def test_steps_beyond_the_largest_graph_wait_for_the_host():
    """Second run of docs/evidence, trial 5: 3,163 tok/s, TPOT p50 27.3 ms; fitted to it."""
    flags = FP8 | {"max_num_seqs": 192, "max_num_batched_tokens": 512, "enable_prefix_caching": True}
    result = run(flags, 128)
    assert result.output_tokens_per_s == pytest.approx(3163, rel=TOLERANCE)
    assert result.tpot_percentile_s(50) * 1e3 == pytest.approx(27.3, rel=TOLERANCE)
    captured = run(flags | {"max_cudagraph_capture_size": 512}, 128)
    assert captured.output_tokens_per_s > 1.5 * result.output_tokens_per_s


def test_what_a_tuner_would_find_there_is_found_here():
    """FP8 beats the defaults in throughput and in p95 TTFT at once, by about as much as measured (x1.44 and 0.63)."""
    defaults, fp8 = run(DEFAULTS, 128), run(FP8, 128)
    assert fp8.output_tokens_per_s / defaults.output_tokens_per_s == pytest.approx(1.44, rel=0.15)
    assert fp8.ttft_percentile_s(95) / defaults.ttft_percentile_s(95) == pytest.approx(0.63, rel=0.15)


def test_memory_of_the_real_start():
    """Logged by the real engine: 17.56 GiB weights, 1.29 activation, 1.04 graphs, 109.55 KV, 2,871,696 tokens."""
    memory = run(DEFAULTS, 64).memory
    assert memory.weights_gib == pytest.approx(17.56, rel=0.01)
    assert memory.activation_gib == pytest.approx(1.29, rel=0.1)
    assert memory.graphs_gib == pytest.approx(1.04, rel=0.1)
    assert memory.kv_gib == pytest.approx(109.55, rel=0.01)
    assert memory.kv_tokens == pytest.approx(2_871_696, rel=0.01)
