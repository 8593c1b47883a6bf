"""How a verdict is reached: order of lines, stages, what the caller knows, and the early verdict."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.engine.failures import (
    Action,
    Advice,
    Cause,
    Direction,
    Failure,
    FailureClass,
    FailureContext,
    Stage,
    Watcher,
    classify,
    read_log,
)
from autotune.engine.kernellog import read_kernel_log
from autotune.engine.signatures import literal_of, load_signatures, parse_signatures
from autotune.errors import SpecError

DATA = Path(__file__).parents[2] / "data" / "failures"
LOGS = DATA / "logs"

GENERIC = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
WORKER = "(Worker pid=7) ERROR 11-29 16:08:41 [multiproc_executor.py:953] "
CORE = "(EngineCore pid=5) ERROR 11-29 16:08:44 [core.py:1510] "
BUSY = (
    "ValueError: Free memory on device cuda:0 (119.20/139.80 GiB) on startup is less than desired GPU memory "
    "utilization (0.9, 125.82 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB free."


def messages() -> list[tuple[str, str]]:
    lines = (DATA / "messages.tsv").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("\t") for line in lines if not line.startswith("#")]
    return [(text, name) for text, name in pairs]


@pytest.mark.parametrize(("text", "name"), messages())
@pytest.mark.parametrize("prefix", ["", WORKER, CORE], ids=["bare", "worker", "core"])
def test_a_message_of_the_sources_gets_its_class(prefix: str, text: str, name: str) -> None:
    assert classify([prefix + text, GENERIC]).failure_class.value == name


def test_the_last_error_is_never_the_cause() -> None:
    log = [WORKER + "ValueError: something that nobody has seen before", CORE + "EngineCore failed to start.", GENERIC]
    failure = classify(log, exit_code=1)
    assert failure.failure_class is FailureClass.UNKNOWN
    assert failure.action is Action.RETRY_ONCE
    assert [line.number for line in failure.lines] == [1]


def test_the_first_root_line_wins_over_later_ones_of_other_workers() -> None:
    log = [
        WORKER + OOM,
        "(Worker_TP1 pid=8) ERROR 11-29 16:08:42 [x.py:1] torch.distributed.DistBackendError: NCCL error: remote",
        CORE + "ValueError: No available memory for the cache blocks.",
    ]
    assert classify(log, phase=Stage.WEIGHTS).failure_class is FailureClass.OOM_WEIGHTS


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ("load_model", FailureClass.OOM_WEIGHTS),
        ("profile_run", FailureClass.OOM_PROFILE_RUN),
        ("initialize_kv_cache", FailureClass.OOM_KV_CACHE),
        ("capture_model", FailureClass.OOM_GRAPH_CAPTURE),
        ("_dummy_sampler_run", FailureClass.OOM_WARMUP),
        ("run_busy_loop", FailureClass.OOM_RUNTIME),
    ],
)
def test_out_of_memory_gets_its_stage_from_the_traceback(frame: str, expected: FailureClass) -> None:
    log = [
        WORKER + f'  File "/x/vllm/v1/worker/gpu_worker.py", line 9, in {frame}',
        WORKER + "    self.go()",
        WORKER + OOM,
    ]
    failure = classify(log)
    assert failure.failure_class is expected
    up = Advice("gpu_memory_utilization", Direction.UP, "")
    assert not any((item.parameter, item.direction) == (up.parameter, up.direction) for item in failure.advice)


def test_out_of_memory_after_the_start_is_the_loads() -> None:
    log = ["INFO:     Application startup complete.", WORKER + OOM]
    assert classify(log).failure_class is FailureClass.OOM_RUNTIME


@pytest.mark.parametrize(
    ("idle_free", "cause", "action"),
    [
        (139.3, Cause.ENVIRONMENT, Action.RETRY_ONCE),
        (119.3, Cause.CONFIG, Action.LEARN),
        (None, Cause.ENVIRONMENT, Action.RETRY_ONCE),
    ],
)
def test_the_same_refusal_has_two_causes(idle_free: float | None, cause: Cause, action: Action) -> None:
    failure = classify([WORKER + BUSY], context=FailureContext(idle_free_gib=idle_free))
    assert (failure.cause, failure.action) == (cause, action)


def test_an_idle_card_that_is_a_little_short_is_the_configuration() -> None:
    line = BUSY.replace("119.20/139.80", "139.29/139.80").replace("(0.9, 125.82", "(1.0, 139.80")
    failure = classify([line])
    assert failure.cause is Cause.CONFIG
    assert failure.failure_class is FailureClass.MEMORY_REQUEST_TOO_LARGE
    assert failure.advice[0].value == "0.99"


def test_a_quarantined_value_is_the_one_that_was_asked_for() -> None:
    line = "ValueError: Invalid attention backend for cuda"
    asked = FailureContext(requested={"attention_backend": "TRITON_ATTN", "max_num_seqs": 64})
    assert classify([line], context=asked).quarantine == (("attention_backend", "TRITON_ATTN"),)


def test_a_value_that_nobody_asked_for_is_not_quarantined_but_stops_the_study() -> None:
    line = "type fp8e4nv not supported in this architecture."
    failure = classify([line], context=FailureContext(requested={"max_num_seqs": 64}))
    assert failure.quarantine == ()
    assert (failure.cause, failure.action) == (Cause.ENVIRONMENT, Action.STOP_IF_REPEATS)


def test_an_engine_that_dies_at_its_own_time_out_was_too_slow() -> None:
    late = classify([GENERIC], context=FailureContext(elapsed_s=601.0))
    early = classify([GENERIC], context=FailureContext(elapsed_s=30.0))
    assert late.failure_class is FailureClass.READY_TIMEOUT
    assert late.advice[0].parameter == "env.VLLM_ENGINE_READY_TIMEOUT_S"
    assert early.failure_class is FailureClass.ENGINE_DEAD_GENERIC


def test_a_card_that_fell_off_the_bus_overrules_the_log() -> None:
    kernel = read_kernel_log(["[1.0] NVRM: Xid (PCI:0000:44:00): 79, pid=1, GPU has fallen off the bus."])
    failure = classify([WORKER + OOM], phase=Stage.SERVING, context=FailureContext(kernel=kernel))
    assert failure.failure_class is FailureClass.GPU_HARDWARE
    assert failure.action is Action.STOP
    assert failure.lines[0].number == 0


def test_xids_and_ecc_that_nvml_counted_overrule_the_log() -> None:
    for context in (FailureContext(xids=(48,)), FailureContext(ecc_uncorrected=2)):
        assert classify([GENERIC], context=context).failure_class is FailureClass.GPU_HARDWARE


def test_an_xid_that_a_faulty_kernel_causes_does_not_excuse_the_configuration() -> None:
    failure = classify([WORKER + OOM], phase=Stage.SERVING, context=FailureContext(xids=(31,)))
    assert failure.failure_class is FailureClass.OOM_RUNTIME


def test_a_killed_worker_with_an_oom_kill_is_the_hosts_memory() -> None:
    kernel = read_kernel_log(["Memory cgroup out of memory: Killed process 77 (VLLM::Worker) total-vm:1kB"])
    died = [CORE + "Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor."]
    failure = classify(died, context=FailureContext(kernel=kernel))
    assert failure.failure_class is FailureClass.HOST_OOM
    assert "container" in failure.advice[0].text
    assert classify(died).failure_class is FailureClass.WORKER_DIED


def test_an_oom_kill_of_somebody_else_does_not_excuse_a_configuration() -> None:
    kernel = read_kernel_log(["Out of memory: Killed process 9 (chrome) total-vm:1kB"])
    failure = classify([WORKER + "AssertionError: 151552 is not divisible by 6"], context=FailureContext(kernel=kernel))
    assert failure.failure_class is FailureClass.TP_DIVISIBILITY


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (-9, FailureClass.KILLED),
        (137, FailureClass.KILLED),
        (-11, FailureClass.WORKER_CRASH),
        (1, FailureClass.UNKNOWN),
        (0, FailureClass.NO_FAILURE),
        (None, FailureClass.NO_FAILURE),
    ],
)
def test_a_log_without_a_word_is_judged_by_the_exit_code(code: int | None, expected: FailureClass) -> None:
    log = ["(APIServer pid=1) INFO 11-29 16:45:04 [model.py:733] Resolved architecture: LlamaForCausalLM"]
    assert classify(log, exit_code=code).failure_class is expected


def test_what_comes_after_an_ordered_shutdown_is_no_failure() -> None:
    log = [
        "INFO:     Application startup complete.",
        "(APIServer pid=1) INFO 11-29 15:15:41 [launcher.py:100] [shutdown] API server: shutdown triggered",
        "(APIServer pid=1) ERROR 11-29 15:15:41 [async_llm.py:704] AsyncLLM output_handler failed.",
        "(APIServer pid=1) ERROR 11-29 15:15:41 [async_llm.py:704] EngineDeadError: EngineCore encountered an issue.",
    ]
    assert classify(log).failure_class is FailureClass.NO_FAILURE
    assert classify([log[0], *log[2:]]).failure_class is FailureClass.ENGINE_DEAD_GENERIC


def test_a_clients_bad_request_is_no_failure_of_the_engine() -> None:
    said = [
        "Traceback (most recent call last):",
        "requests.HTTPError: 404 Client Error: for url http://x/i.png",
        "pydantic.ValidationError: 1 validation error for ChatRequest",
        "  Value error, max_tokens must be at least 1",
    ]
    log = ["INFO:     Application startup complete."]
    log += [f"(APIServer pid=1) ERROR 11-29 15:15:41 [serving.py:5] {text}" for text in said]
    assert classify(log).failure_class is FailureClass.NO_FAILURE


def test_a_prompt_in_a_dump_decides_nothing() -> None:
    log = [
        CORE.replace("core.py:1510", "dump_input.py:79") + "Dumping scheduler output: prompt='CUDA out of memory'",
        CORE + "EngineCore encountered a fatal error.",
    ]
    assert classify(log, phase=Stage.SERVING).failure_class is FailureClass.ENGINE_DEAD_GENERIC


def test_an_error_that_the_engine_survived_is_not_the_cause() -> None:
    hub = "(APIServer pid=1) ERROR 11-29 15:00:00 [repo_utils.py:124] Error retrieving file list: 401 Client Error"
    later = classify([hub, WORKER + OOM], phase=Stage.WEIGHTS)
    served = classify([hub, "INFO:     Application startup complete.", CORE + "EngineDeadError"])
    assert classify([hub], exit_code=1).failure_class is FailureClass.HF_UNAUTHORIZED
    assert later.failure_class is FailureClass.OOM_WEIGHTS
    assert served.failure_class is FailureClass.ENGINE_DEAD_GENERIC
    watcher = Watcher()
    assert watcher.feed(hub) is None and watcher.settle() is None


def test_a_stall_is_none_when_tokens_came_again() -> None:
    idle = (
        "(APIServer pid=1) INFO 11-29 15:15:28 [loggers.py:310] Engine 000: Avg prompt throughput: 0.0 tokens/s, "
        "Avg generation throughput: 0.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs"
    )
    busy = idle.replace("generation throughput: 0.0", "generation throughput: 812.4")
    assert classify([idle, idle]).failure_class is FailureClass.STALL
    assert classify([idle, busy]).failure_class is FailureClass.NO_FAILURE


def test_a_check_in_vllms_own_configuration_is_the_configurations_fault() -> None:
    def log(path: str, error: str) -> list[str]:
        return [CORE + f'  File "/x/site-packages/vllm/{path}", line 3, in check', CORE + "    raise", CORE + error]

    known = classify(log("config/cache.py", "ValueError: a sentence of next year"))
    kernel = classify(log("model_executor/layers/linear.py", "AssertionError: a sentence of next year"))
    neither = classify(log("utils/func.py", "ValueError: a sentence of next year"))
    assert (known.failure_class, known.action) == (FailureClass.CONFIG_VALIDATION, Action.LEARN)
    assert (kernel.failure_class, kernel.action) == (FailureClass.UNSUPPORTED_COMBINATION, Action.LEARN)
    assert neither.failure_class is FailureClass.UNKNOWN


def test_secrets_in_deciding_lines_are_gone() -> None:
    line = WORKER + "ValueError: request to hub with token hf_abcdefghijklmnop and --api-key s3cret-value failed"
    failure = classify([line])
    assert "hf_abc" not in failure.reason and "s3cret" not in failure.reason
    assert "[redacted]" in failure.reason


# ------------------------------------------------------------------ early verdicts


def verdict_line(path: Path) -> tuple[int | None, Failure | None]:
    watcher = Watcher()
    for number, raw in enumerate(read_log(path), start=1):
        if failure := watcher.feed(raw):
            return number, failure
    return None, watcher.settle()


def early_logs() -> list[tuple[str, str]]:
    expected = tomllib.loads((DATA / "expected_logs.toml").read_text(encoding="utf-8"))
    return [(name, value[0]) for name, value in expected.items()]


@pytest.mark.parametrize(("name", "expected"), early_logs())
def test_the_watcher_says_what_the_finished_log_says_or_nothing(name: str, expected: str) -> None:
    number, failure = verdict_line(LOGS / f"{name}.log")
    # Engines report some of these and go on; and where they do not, they end by themselves at once.
    waits = {"unknown", "no_failure", "engine_dead_generic", "model_not_found", "model_unsupported", "install_broken"}
    if expected in waits:
        assert failure is None or failure.failure_class.value == expected
        return
    assert failure is not None, "no early verdict"
    assert failure.failure_class.value == expected
    assert number is None or number >= failure.lines[0].number


def test_a_hanging_engine_is_judged_by_its_line_and_not_by_the_time_out() -> None:
    # This engine wrote its error and then hung for four minutes.
    number, failure = verdict_line(LOGS / "missing_compiler.log")
    assert failure is not None and failure.failure_class is FailureClass.COMPILER_MISSING
    assert number == failure.lines[0].number == 176


def test_a_watcher_gives_one_verdict_only() -> None:
    watcher = Watcher()
    first = watcher.feed(WORKER + "AssertionError: 151552 is not divisible by 6")
    assert first is not None and watcher.verdict is first
    assert watcher.feed(WORKER + "AssertionError: 151552 is not divisible by 6") is None
    assert watcher.settle() is None


def test_a_broad_line_waits_for_a_better_one() -> None:
    watcher = Watcher()
    assert watcher.feed(WORKER + "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:") is None
    better = watcher.feed(WORKER + "torch._inductor.exc.InvalidCxxCompiler: No working C++ compiler found")
    assert better is not None and better.failure_class is FailureClass.COMPILER_MISSING


def test_a_broad_line_decides_when_nothing_better_comes() -> None:
    line = WORKER + "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:"
    silent, chatty = Watcher(), Watcher()
    silent.feed(line)
    settled = silent.settle()
    assert settled is not None and settled.failure_class is FailureClass.COMPILE_FAILURE
    verdicts = [chatty.feed(line), *(chatty.feed("noise") for _ in range(80))]
    assert [verdict.failure_class for verdict in verdicts if verdict] == [FailureClass.COMPILE_FAILURE]


def test_an_unknown_exception_settles_once_the_engine_says_that_it_failed() -> None:
    watcher = Watcher()
    watcher.feed(WORKER + "RuntimeError: a sentence of next year")
    assert watcher.settle() is None
    watcher.feed(CORE + "EngineCore failed to start.")
    settled = watcher.settle()
    assert settled is not None and settled.failure_class is FailureClass.UNKNOWN


# ------------------------------------------------------------------ any input


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(max_size=200), max_size=30))
def test_garbage_never_raises(lines: list[str]) -> None:
    watcher = Watcher()
    for line in lines:
        watcher.feed(line)
    watcher.settle()
    assert isinstance(classify(lines), Failure)


def test_half_lines_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    log = tmp_path / "half.log"
    log.write_bytes(b"\xff\xfe\x00 INFO 11-2\n(Worker pid=\n" + WORKER.encode() + b"ValueError: Free mem")
    assert classify(log).failure_class is FailureClass.UNKNOWN


def test_a_huge_log_is_read_at_both_ends_only(tmp_path: Path) -> None:
    log = tmp_path / "huge.log"
    with log.open("wb") as file:
        file.write((WORKER + "AssertionError: 151552 is not divisible by 6\n").encode())
        # A sparse file: a gigabyte that takes no room.
        file.truncate(1 << 30)
        file.seek(0, 2)
        file.write(f"\n{GENERIC}\n".encode())
    assert classify(log).failure_class is FailureClass.TP_DIVISIBILITY


def test_a_line_without_an_end_is_cut() -> None:
    failure = classify([WORKER + "ValueError: " + "x" * 5_000_000])
    assert len(failure.reason) < 1000


# ------------------------------------------------------------------ the data file


def test_every_signature_is_reachable_by_its_class() -> None:
    used = {signature.failure_class for signature in load_signatures()}
    derived = {FailureClass.NO_FAILURE, FailureClass.UNKNOWN, FailureClass.KILLED}
    assert used | derived == set(FailureClass)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[signature]]\nid = "a"\nclass = "nonsense"\ncause = "config"\naction = "learn"\nmatch = ["x"]', "nonsense"),
        ('[[signature]]\nid = "a"\nclass = "oom"\ncause = "config"\naction = "learn"\nmatch = ["("]', "a"),
        ('[[signature]]\nid = "a"\nclass = "oom"\ncause = "config"\naction = "learn"', "match"),
        ('[[signature]]\nid = "a"\nclas = "oom"', "clas"),
        ("[[signature", "not TOML"),
    ],
)
def test_a_wrong_signature_file_says_where(text: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        parse_signatures(text)


def test_an_id_used_twice_is_refused() -> None:
    entry = '[[signature]]\nid = "a"\nclass = "oom"\ncause = "config"\naction = "learn"\nmatch = ["x"]\n'
    with pytest.raises(SpecError, match="twice"):
        parse_signatures(entry * 2)


@pytest.mark.parametrize(
    ("pattern", "literal"),
    [
        ("abc", "abc"),
        (r"max_num_seqs \((?P<n>\d+)\) exceeds available", ") exceeds available"),
        (r"colou?r of it", "r of it"),
        (r"one|another", ""),
        (r"(?:one|another) thing", " thing"),
        (r"[^\]x]+ab*c", "a"),
        (r"\bword\b", "word"),
        (r"x{20,30}yz", "yz"),
    ],
)
def test_the_text_to_look_for_first_stands_in_every_match(pattern: str, literal: str) -> None:
    assert literal_of(pattern) == literal


def test_looking_for_the_text_first_misses_nothing() -> None:
    texts = [text for text, _ in messages()]
    texts += [raw for path in LOGS.glob("*.log") for raw in read_log(path)]
    for signature in load_signatures():
        for literal, pattern in signature.patterns:
            assert all(literal in text for text in texts if pattern.search(text)), (signature.id, literal)


def test_an_argument_that_was_asked_for_in_parts_is_the_configurations_own() -> None:
    """Met by a study on the real vLLM: the value was blamed on the machine, because nobody asked for the whole."""
    log = LOGS / "spec_bad_method.log"
    asked = FailureContext(requested={"speculative_config.method": "nosuch", "max_model_len": 1024})
    failure = classify(log, context=asked)
    assert (failure.cause, failure.action) == (Cause.CONFIG, Action.QUARANTINE_VALUE)
    assert failure.quarantine == (("speculative_config.method", "nosuch"),)
    nobody = classify(log, context=FailureContext(requested={"max_model_len": 1024}))
    assert nobody.cause is Cause.ENVIRONMENT, "nothing of it was asked for"
