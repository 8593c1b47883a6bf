"""Stages, facts and warnings of real starts, and of anything else that may be in a log."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.engine.notices import NoticeKind, is_harmless
from autotune.engine.protocol import Phase
from autotune.engine.stages import Stage
from autotune.engine.startlog import StartLog

DATA = Path(__file__).parents[2] / "data"


def read(name: str) -> StartLog:
    text = (DATA / name).read_text(encoding="utf-8")
    return StartLog().feed_all(text.splitlines())


@pytest.fixture(scope="module")
def cold() -> StartLog:
    return read("startlogs/startup-h200-0.26.0-cold.log")


def test_the_stages_of_a_cold_start(cold: StartLog) -> None:
    assert cold.phases == (
        Phase("inspect", 27.0),
        Phase("config", 0.0),
        Phase("engine_import", 27.0),
        Phase("init", 3.0),
        Phase("weights", 2.0),
        Phase("profiling", 3.81),
        Phase("compile", 37.19),
        Phase("kv_cache", 0.0),
        Phase("graphs", 4.0),
        Phase("warmup", 17.0),
        Phase("server", 2.0),
    )
    assert cold.ready


def test_a_warm_cache_shows_in_the_compile_stage() -> None:
    warm = {phase.name: phase.seconds for phase in read("startlogs/startup-h200-0.26.0-default_again_fork.log").phases}
    assert warm["compile"] == 6.86
    assert warm["engine_import"] == 4.0


def test_the_facts_of_a_start(cold: StartLog) -> None:
    facts = cold.facts
    assert facts.vllm_version == "0.26.0"
    assert facts.architecture == "Qwen3ForCausalLM"
    assert facts.attention_backend == "FLASH_ATTN"
    assert (facts.weights_gib, facts.peak_activation_gib, facts.non_torch_gib) == (15.27, 1.29, 0.22)
    assert (facts.cuda_graph_gib, facts.available_kv_gib) == (0.4, 111.84)
    assert (facts.kv_cache_tokens, facts.max_concurrency) == (814_368, 99.41)
    assert (facts.free_gib, facts.total_gib) == (139.29, 139.8)
    assert (facts.compile_s, facts.init_s) == (37.19, 61.57)
    assert (facts.max_num_batched_tokens, facts.max_model_len) == (8192, 8192)
    assert facts.async_scheduling is True
    assert dict(facts.requested)["max_num_seqs"] == "128"


def test_the_resolved_settings_are_the_top_level_ones(cold: StartLog) -> None:
    facts = cold.facts
    expected = {"dtype": "torch.bfloat16", "max_seq_len": "8192", "enforce_eager": "False", "kv_cache_dtype": "auto"}
    assert {name: facts.resolved_value(name) for name in expected} == expected
    assert facts.resolved_value("enable_prefix_caching") == "True"
    # Stands inside compilation_config and is no setting of its own.
    assert facts.resolved_value("backend") is None
    assert facts.resolved_value("nothing") is None


def test_the_facts_of_a_start_on_a_cpu() -> None:
    log = read("failures/logs/spec_ngram.log")
    assert log.facts.vllm_version == "0.32.0"
    assert (log.facts.available_kv_gib, log.facts.kv_cache_tokens) == (0.5, 23_296)
    assert log.facts.max_concurrency == 11.38
    assert log.ready
    names = [phase.name for phase in log.phases]
    assert names == [stage.value for stage in Stage if stage.value in names]
    assert {"engine_import", "weights", "kv_cache", "server"} <= set(names)


def test_the_newer_memory_report_gives_the_sum_of_weights_and_the_rest() -> None:
    line = (
        "(EngineCore pid=1) INFO 11-29 10:00:00 [gpu_worker.py:857] Free memory on device (78.5/79.1 GiB) on startup. "
        "Desired GPU memory utilization is (0.9, 71.2 GiB). Actual usage is 16.1 GiB for consumed memory (weights + "
        "non-torch), 4.1 GiB for peak activation, and 1.2 GiB for CUDAGraph memory."
    )
    facts = StartLog().feed_all([line]).facts
    assert (facts.consumed_gib, facts.peak_activation_gib, facts.cuda_graph_gib) == (16.1, 4.1, 1.2)
    assert facts.weights_gib is None


def test_of_several_workers_the_one_that_limits_counts() -> None:
    log = StartLog()
    for rank, (weights, left) in enumerate([(17.1, 50.2), (17.4, 49.9)]):
        head = f"(Worker_TP{rank} pid={rank}) INFO 11-29 10:00:0{rank} "
        log.feed(f"{head}[gpu_model_runner.py:1] Model loading took {weights} GiB memory and 3.1 seconds")
        log.feed(f"{head}[gpu_worker.py:1] Available KV cache memory: {left} GiB")
    assert (log.facts.weights_gib, log.facts.available_kv_gib) == (17.4, 49.9)


def test_fallbacks_and_ignored_variables_are_told_apart_from_noise() -> None:
    log = read("failures/logs/spec_ngram.log")
    kinds = {notice.notice_id: notice.kind for notice in log.notices}
    assert kinds["async_scheduling_off"] is NoticeKind.FALLBACK
    assert kinds["spec_tokens_limit"] is NoticeKind.TRAP
    assert "file_limit_warning" not in kinds


@pytest.mark.parametrize(
    ("line", "kind", "parameter"),
    [
        ("Unknown vLLM environment variable detected: VLLM_NOPE", NoticeKind.IGNORED, "env.VLLM_NOPE"),
        ("Truncating max_cudagraph_capture_size to 4", NoticeKind.TRAP, "max_cudagraph_capture_size"),
        (
            "CUDA graph is not supported for x, fallback to eager mode.",
            NoticeKind.FALLBACK,
            "enforce_eager",
        ),
        ("Disabling chunked prefill for model without KVCache", NoticeKind.FALLBACK, "enable_chunked_prefill"),
        (
            "No Flash Attention. Falling back to Triton Attention backend.",
            NoticeKind.FALLBACK,
            "attention_backend",
        ),
        ("Overriding cudagraph_mode from FULL to PIECEWISE.", NoticeKind.FALLBACK, "compilation_config.cudagraph_mode"),
        ("Auto-fit max_model_len: reduced from 131072 to 65536 to fit", NoticeKind.FALLBACK, "max_model_len"),
    ],
)
def test_a_weakened_setting_names_its_parameter(line: str, kind: NoticeKind, parameter: str) -> None:
    (event,) = StartLog().feed(f"(EngineCore pid=1) WARNING 11-29 10:00:00 [x.py:1] {line}")
    assert event.notice is not None
    assert (event.notice.kind, event.notice.parameter) == (kind, parameter)


def test_a_healthy_gpu_start_has_no_fallback(cold: StartLog) -> None:
    assert [notice for notice in cold.notices if notice.kind in (NoticeKind.IGNORED, NoticeKind.FALLBACK)] == []


def test_events_tell_the_stages_as_they_begin() -> None:
    text = (DATA / "startlogs/startup-h200-0.26.0-cold.log").read_text(encoding="utf-8")
    log = StartLog()
    stages = [event.stage for raw in text.splitlines() for event in log.feed(raw) if event.stage]
    assert stages[0] is Stage.INSPECT and stages[-1] is Stage.SERVING
    assert Stage.GRAPHS in stages


def test_the_callers_clock_measures_the_import() -> None:
    log = StartLog(started=100.0)
    log.feed("(APIServer pid=1) INFO 11-29 10:00:00 [x.py:1] non-default args: {'model': 'm'}", at=120.5)
    log.feed("(APIServer pid=1) INFO 11-29 10:00:09 [x.py:1] Resolved architecture: A", at=127.0)
    assert log.phases == (Phase("import", 20.5), Phase("inspect", 6.5))


@pytest.mark.parametrize(
    ("first", "second", "seconds"),
    [("12-31 23:59:58", "01-01 00:00:03", 5.0), ("11-29 10:00:05", "11-29 10:00:01", 0.0)],
)
def test_new_year_and_a_clock_that_was_set_back(first: str, second: str, seconds: float) -> None:
    log = StartLog()
    log.feed(f"(APIServer pid=1) INFO {first} [x.py:1] non-default args: {{}}")
    log.feed(f"(APIServer pid=1) INFO {second} [x.py:1] Resolved architecture: A")
    assert log.phases == (Phase("inspect", seconds),)


def test_secrets_are_not_kept() -> None:
    log = StartLog()
    log.feed("(APIServer pid=1) INFO 11-29 10:00:00 [x.py:1] non-default args: {'model': 'm', 'api_key': ['s3cret']}")
    log.feed(
        "(EngineCore pid=1) INFO 11-29 10:00:01 [core.py:1] Initializing a V1 LLM engine (v0.32.0) with config: "
        "model='m', hf_token=hf_abcdefghijklmnop, seed=0"
    )
    assert "s3cret" not in repr(log.facts) and "hf_abc" not in repr(log.facts)
    assert log.facts.resolved_value("seed") == "0"


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(max_size=200), max_size=40))
def test_garbage_never_raises(lines: list[str]) -> None:
    log = StartLog().feed_all(lines)
    assert all(phase.seconds >= 0 for phase in log.phases)


def test_every_prefix_of_a_log_is_a_log() -> None:
    text = (DATA / "startlogs/startup-h200-0.26.0-cold.log").read_text(encoding="utf-8")
    for end in range(0, len(text), 997):
        log = StartLog().feed_all(text[:end].splitlines())
        assert all(phase.seconds >= 0 for phase in log.phases)


def test_memory_does_not_grow_with_the_log() -> None:
    log = StartLog()
    for number in range(3000):
        said = f"Unknown vLLM environment variable detected: VLLM_{number}"
        log.feed(f"(EngineCore pid=1) WARNING 11-29 10:00:00 [x.py:1] {said}")
    assert len(log.notices) <= 200


def test_harmless_lines_are_known() -> None:
    assert is_harmless("UserWarning: resource_tracker: There appear to be 1 leaked semaphore objects to clean up")
    assert not is_harmless("torch.OutOfMemoryError: CUDA out of memory")
