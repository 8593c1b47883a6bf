"""Predicted KV tokens against the logs of real starts, and what a calibration keeps."""

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.engine.protocol import Resolved
from autotune.engine.startfacts import StartFacts
from autotune.preflight.calibration import Calibration
from autotune.preflight.calibration_store import (
    CalibrationKey,
    DocumentCalibrations,
    FileCalibrations,
    LayeredCalibrations,
    MemoryCalibrations,
)
from autotune.preflight.memory import GpuFacts, predict
from autotune.preflight.model import ModelFacts
from autotune.preflight.simulated import simulated_facts
from autotune.preflight.study import StudyPreflight
from autotune.preflight.terms import GIB
from autotune.space.config import EngineConfig

from .conftest import start_facts

H200 = GpuFacts(round(139.8 * GIB), "NVIDIA H200", round(0.51 * GIB))
STARTS = (
    ("qwen3-8b", "cold", {"max_model_len": 8192, "max_num_seqs": 128}),
    ("glm-4-9b", "default", {"max_model_len": 8192}),
    ("glm-4-9b", "default_again_fork", {"max_model_len": 8192}),
    ("glm-4-9b", "seed", {"max_model_len": 32768, "max_num_batched_tokens": 32768, "max_num_seqs": 128}),
)  # fmt: skip


def facts(model: str) -> ModelFacts:
    found = simulated_facts(model)
    assert found is not None
    return found


def test_the_error_on_four_real_starts_is_below_three_percent_from_the_second_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = MemoryCalibrations()
    for model, name, args in STARTS:
        preflight = StudyPreflight(facts(model), H200, 1, store=store, model=model, version="0.26.0")
        said, config = start_facts(f"startlogs/startup-h200-0.26.0-{name}.log"), EngineConfig.of(args)
        before = preflight.calibration.samples
        preflight.learn_facts(config, said)
        again = preflight.budget(config)
        assert again is not None and said.kv_cache_tokens
        error, after = preflight.errors[-1], again.kv_cache_tokens / said.kv_cache_tokens - 1
        with capsys.disabled():
            kind = f"after {len(before)} starts" if before else "from formulas alone"
            print(
                f"\n  {model} {name}: {said.kv_cache_tokens:,} tokens, predicted {error:+.2%} {kind}, {after:+.3%} next"
            )
        assert abs(error) < 0.03
        assert abs(after) < 0.001


@pytest.mark.parametrize(("log", "block"), [("spec_ngram", 128), ("invalid_block_size", 7)])
def test_tokens_of_the_cpu_engine_follow_exactly_from_the_given_bytes(log: str, block: int) -> None:
    said = start_facts(f"failures/logs/{log}.log")
    config = EngineConfig.of({"max_model_len": 2048, "kv_cache_memory_bytes": "512M", "block_size": block})
    budget = predict(facts("smollm2-135m"), config, GpuFacts(24 * GIB, "cpu", cpu=True), Calibration())
    assert budget.kv_cache_tokens == said.kv_cache_tokens


def test_a_small_card_where_a_tenth_of_a_gib_counts() -> None:
    """The activation peak of a cold start differs from a warm one: the second start of the same kind is right."""
    gpu = GpuFacts(round(22.03 * GIB), "NVIDIA L4", round(0.23 * GIB))
    preflight = StudyPreflight(facts("qwen3-8b"), gpu, 1, model="m", version="0.26.0")
    config = EngineConfig.of({"max_model_len": 8192})
    cold = StartFacts(
        weights_gib=15.31, peak_activation_gib=1.04, non_torch_gib=0.11, cuda_graph_gib=0.51, available_kv_gib=3.81,
        kv_cache_tokens=27_728, total_gib=22.03, free_gib=21.8, compile_s=40.0,
    )  # fmt: skip
    warm = replace(cold, peak_activation_gib=0.7, available_kv_gib=4.15, kv_cache_tokens=30_208, compile_s=7.0)
    for said in (cold, warm, warm):
        preflight.learn_facts(config, said)
    assert abs(preflight.errors[2]) < 0.03


def test_newer_engines_give_weights_and_non_torch_memory_as_one_sum_and_leave_graphs_out_of_the_cache() -> None:
    preflight = StudyPreflight(facts("qwen3-8b"), H200, 1, model="m", version="0.32.0")
    config = EngineConfig.of({"max_model_len": 8192})
    said = StartFacts(
        weights_gib=15.27, consumed_gib=15.5, peak_activation_gib=1.29, cuda_graph_gib=1.0, available_kv_gib=110.83,
        kv_cache_tokens=807_008, total_gib=139.8, free_gib=139.29,
    )  # fmt: skip
    preflight.learn_facts(config, said)
    sample = preflight.calibration.samples[0]
    assert sample.non_torch == pytest.approx(0.23 * GIB)
    assert sample.left_out == pytest.approx(1.0 * GIB, rel=0.05)
    again = preflight.budget(config)
    assert again is not None
    assert again.kv_cache_tokens == pytest.approx(807_008, rel=0.001)


def test_graphs_that_the_engine_expects_are_told_apart_from_activations(tmp_path: Path) -> None:
    """Newer versions print a peak with the estimate of the graphs in it; another ladder has another estimate."""
    preflight = StudyPreflight(facts("qwen3-8b"), H200, 1, model="m")
    log = tmp_path / "engine.log"
    log.write_text(
        "INFO 11-29 15:00:00 [core.py:116] Initializing a V1 LLM engine (v0.32.0) with config: model='m'\n"
        "INFO 11-29 15:00:01 [model_runner.py:305] Model loading took 15.27 GiB and 2.5 seconds\n"
        "INFO 11-29 15:00:02 [gpu_model_runner.py:6806] Estimated CUDA graph memory: 1.20 GiB total\n"
        "INFO 11-29 15:00:03 [gpu_worker.py:560] Available KV cache memory: 110.63 GiB\n"
        "INFO 11-29 15:00:04 [kv_cache_utils.py:2177] GPU KV cache size: 805,552 tokens\n"
        "INFO 11-29 15:00:05 [gpu_worker.py:857] Free memory on device (139.29/139.8 GiB) on startup. Desired GPU "
        "memory utilization is (0.92, 128.62 GiB). Actual usage is 15.5 GiB for consumed memory (weights + non-torch), "
        "2.49 GiB for peak activation, and 1.0 GiB for CUDAGraph memory.\n"
    )

    class Running:
        resolved = Resolved()

        def __init__(self) -> None:
            self.log = log

    preflight.learn(EngineConfig.of({"max_model_len": 8192}), Running())
    assert preflight.version == "0.32.0"
    sample = preflight.calibration.samples[0]
    assert sample.activations == pytest.approx(1.29 * GIB)
    assert sample.left_out == pytest.approx(1.2 * GIB)
    eager = preflight.budget(EngineConfig.of({"max_model_len": 8192, "enforce_eager": True}))
    assert eager is not None
    assert eager.kv_cache == pytest.approx(111.83 * GIB, rel=0.001)


def test_before_the_first_start_nothing_is_refused_for_graphs_that_may_have_been_reserved() -> None:
    gpu = GpuFacts(round(22.03 * GIB), "NVIDIA L4", round(0.23 * GIB))
    config = EngineConfig.of({"max_model_len": 8192, "gpu_memory_utilization": 0.985, "max_num_batched_tokens": 512})
    unknown = predict(facts("smollm2-135m"), config, gpu, Calibration())
    outside = predict(facts("qwen3-8b"), config, gpu, Calibration(), graphs_reserved=False)
    assert unknown.shortage is None
    assert outside.tight is not None


def test_a_calibration_survives_and_damaged_text_is_an_empty_one(tmp_path: Path) -> None:
    store = FileCalibrations(tmp_path / "calibrations")
    first = StudyPreflight(facts("glm-4-9b"), H200, 1, store=store, model="org/glm", version="0.26.0")
    first.learn_facts(EngineConfig.of({}), start_facts("startlogs/startup-h200-0.26.0-default.log"))
    second = StudyPreflight(facts("glm-4-9b"), H200, 1, store=store, model="org/glm", version="0.26.0")
    assert second.calibration == first.calibration
    assert len(second.calibration.samples) == 1
    other = StudyPreflight(facts("glm-4-9b"), H200, 1, store=store, model="org/glm", version="0.27.0")
    assert not other.calibration.samples
    for text in ("", "{", '[{"layout": 3}]'):
        assert Calibration.from_json(text) == Calibration()


def test_a_study_keeps_its_calibrations_among_its_documents() -> None:
    class Documents:
        def __init__(self) -> None:
            self.bodies: dict[tuple[str, str], str] = {}

        def get(self, kind: str, key: str) -> str | None:
            return self.bodies.get((kind, key))

        def put(self, kind: str, key: str, body: str) -> None:
            self.bodies[kind, key] = body

    documents = Documents()
    kept = DocumentCalibrations(documents)
    assert kept.get("k") is None
    kept.put("k", "text")
    assert kept.get("k") == "text"
    assert list(documents.bodies) == [("calibration", "k")]


def test_layers_ask_in_turn_and_write_to_all() -> None:
    study, host = MemoryCalibrations(), MemoryCalibrations({"k": "old"})
    layered = LayeredCalibrations((study, host))
    assert layered.get("k") == "old"
    layered.put("k", "new")
    assert (study.texts, host.texts) == ({"k": "new"}, {"k": "new"})


def test_a_disk_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    store = FileCalibrations(blocked / "below")
    store.put("k", "text")
    assert store.get("k") is None


def test_keys_are_file_names_and_never_the_same_for_different_models() -> None:
    one, two = CalibrationKey("H200", "a/b", "0.32"), CalibrationKey("H200", "c/b", "0.32")
    assert str(one) != str(two)
    assert "/" not in str(CalibrationKey("NVIDIA H200", "/srv/models/x y", "0.32.0+cpu"))


def test_only_the_latest_samples_are_kept() -> None:
    preflight = StudyPreflight(facts("glm-4-9b"), H200, 1, model="m", version="v")
    said = start_facts("startlogs/startup-h200-0.26.0-default.log")
    for _ in range(40):
        preflight.learn_facts(EngineConfig.of({}), said)
    assert len(preflight.calibration.samples) == 32
