"""The memory model on shapes whose sizes are known."""

from dataclasses import replace

import pytest

from autotune.preflight.calibration import Calibration
from autotune.preflight.cards import card_facts, measured_facts
from autotune.preflight.memory import GpuFacts, Limit, predict
from autotune.preflight.model import ModelFacts
from autotune.preflight.settings import default_capture_sizes, serving_of, size_of
from autotune.preflight.terms import GIB, kv_bytes, weight_bytes
from autotune.space.config import EngineConfig
from benchmarks.preflight.agreement import compare


def serving(args: dict, facts: ModelFacts):
    return serving_of(EngineConfig.of(args), facts, memory=80 * GIB, card="h100", cpu=False)


@pytest.mark.parametrize(
    ("model", "args", "gib"),
    [  # GLM from a start log; the others nominal sizes of the checkpoints over the ranks
        ("glm-4-9b", {}, 17.56),
        ("qwen3-14b", {}, 27.5),
        ("gemma-7b", {}, 15.9),
        ("deepseek-r1", {"tensor_parallel_size": 8}, 641 / 8),
        ("qwen3-235b-fp8", {"tensor_parallel_size": 4}, 220 / 4),
        ("gpt-oss-120b", {}, 60.8),
        ("llama-3.1-405b", {"tensor_parallel_size": 8}, 756 / 8),
        ("minimax-m2.5", {"tensor_parallel_size": 4}, 214 / 4),
    ],
)
def test_weights_of_public_checkpoints(models: dict[str, ModelFacts], model: str, args: dict, gib: float) -> None:
    facts = models[model]
    assert weight_bytes(facts, serving(args, facts)) / GIB == pytest.approx(gib, rel=0.04)


@pytest.mark.parametrize(
    ("model", "args", "per_token"),
    [
        ("glm-4-9b", {}, 40_960),
        ("glm-4-9b", {"kv_cache_dtype": "fp8"}, 20_480),
        ("glm-4-9b", {"tensor_parallel_size": 4}, 20_480),  # two heads over four ranks: one copy each
        ("qwen3-14b", {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, 40_960),
        ("deepseek-r1", {"tensor_parallel_size": 8}, 61 * 576 * 2),  # latents are copied to every rank
        ("gpt-oss-120b", {}, 18 * 2 * 8 * 64 * 2),  # windowed layers count per request
    ],
)
def test_kv_bytes_of_a_token(models: dict[str, ModelFacts], model: str, args: dict, per_token: int) -> None:
    facts = models[model]
    assert kv_bytes(facts, serving(args, facts))[0] == per_token


def test_windows_bound_what_a_long_request_needs(models: dict[str, ModelFacts]) -> None:
    facts = models["gemma-3-27b"]
    fixed = kv_bytes(facts, serving({"max_model_len": 131072, "max_num_batched_tokens": 2048}, facts))[1]
    assert fixed == 52 * (1024 + 2048) * 2 * 16 * 128 * 2


def test_fp8_on_the_fly_halves_the_linear_layers_and_leaves_embeddings(models: dict[str, ModelFacts]) -> None:
    facts = models["glm-4-9b"]
    plain, small = weight_bytes(facts, serving({}, facts)), weight_bytes(facts, serving({"quantization": "fp8"}, facts))
    embeddings = 2 * 2 * facts.vocabulary * facts.hidden
    assert small == pytest.approx((plain - embeddings) / 2 + embeddings, rel=0.001)


def test_files_on_disk_correct_the_formula_and_nonsense_does_not(models: dict[str, ModelFacts]) -> None:
    facts = models["glm-4-9b"]
    formula = weight_bytes(facts, serving({}, facts))
    assert weight_bytes(replace(facts, weight_bytes=int(1.1 * formula)), serving({}, facts)) == pytest.approx(
        1.1 * formula
    )
    assert weight_bytes(replace(facts, weight_bytes=1000), serving({}, facts)) == formula


@pytest.mark.parametrize(
    ("limit", "args"),
    [
        (Limit.REQUEST, {"gpu_memory_utilization": 0.999}),
        (Limit.WEIGHTS, {"dtype": "float32", "pipeline_parallel_size": 1}),
        (Limit.NO_CACHE, {"gpu_memory_utilization": 0.3}),
        (Limit.SAMPLER, {"gpu_memory_utilization": 0.99, "max_num_seqs": 8192, "max_num_batched_tokens": 8192}),
    ],
)
def test_the_first_thing_that_is_short_is_named(models: dict[str, ModelFacts], limit: Limit, args: dict) -> None:
    model = "llama-3.1-405b" if limit is Limit.WEIGHTS else "qwen3-14b"
    gpu = card_facts("h100")
    assert gpu is not None
    config = EngineConfig.of({"max_model_len": 8192, **args})
    budget = predict(models[model], config, gpu, Calibration(), graphs_reserved=False)
    assert budget.shortage is not None
    assert budget.shortage.limit is limit
    assert budget.shortage.violation > 0


def test_what_fits_is_told(models: dict[str, ModelFacts]) -> None:
    gpu = card_facts("NVIDIA H200")
    assert gpu is not None
    budget = predict(models["glm-4-9b"], EngineConfig.of({"max_model_len": 8192}), gpu, Calibration())
    assert budget.shortage is None
    assert budget.largest[-1] == (budget.kv_cache_tokens // 8192, 8192)
    assert budget.full_requests == pytest.approx(350.55, rel=0.01)  # as vLLM says in its log
    assert budget.limiting == "KV cache"
    assert dict(budget.rows)["weights"] == pytest.approx(17.56 * GIB, rel=0.01)


def test_images_take_room_unless_they_are_switched_off(models: dict[str, ModelFacts]) -> None:
    facts, gpu = models["gemma-3-27b"], card_facts("h200")
    assert gpu is not None
    with_images = predict(facts, EngineConfig.of({}), gpu, Calibration())
    without = predict(facts, EngineConfig.of({"limit_mm_per_prompt": {"image": 0}}), gpu, Calibration())
    sized = predict(
        facts, EngineConfig.of({"limit_mm_per_prompt": {"image": {"count": 1, "width": 512}}}), gpu, Calibration()
    )
    assert sized.serving.images == 1, "the width is no count"
    assert without.terms.activations < with_images.terms.activations - 0.1 * GIB


def test_sizes_are_read_as_vllm_reads_them() -> None:
    assert [size_of(value) for value in ("32k", "32K", "512M", 7, "auto", -1, None, True, "x")] == [
        32_000, 32_768, 2**29, 7, None, None, None, None, None,
    ]  # fmt: skip
    assert len(default_capture_sizes(512)) == 51  # 102 graphs of two kinds in the log of a start


def test_cards_by_name_and_as_measured() -> None:
    nvl, unknown = card_facts("NVIDIA H100 NVL"), card_facts("Radeon")
    assert nvl is not None and nvl.memory_bytes > 90 * GIB
    assert unknown is None
    assert card_facts("Radeon", 16 * GIB) == GpuFacts(16 * GIB, "Radeon")
    assert measured_facts(()) is None


def test_no_false_refusal_against_the_simulator_and_most_crashes_are_seen_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fresh, learnt = compare(300, 5, learn=False), compare(300, 5, learn=True)
    with capsys.disabled():
        print(f"\n  from formulas: {fresh}\n  calibrated: {learnt}")
    assert fresh.false == [] and learnt.false == []
    assert fresh.recall > 0.7
    assert learnt.recall >= fresh.recall
    assert max(map(abs, learnt.errors)) < 0.03
