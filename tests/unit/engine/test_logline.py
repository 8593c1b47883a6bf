"""Lines as vLLM of several versions, uvicorn, Ray, containers and log viewers write them."""

from __future__ import annotations

import pytest

from autotune.engine.logline import MAX_LINE_CHARS, parse_line


@pytest.mark.parametrize(
    ("raw", "process", "level", "source", "text"),
    [
        ("(EngineCore pid=7) INFO 11-29 14:57:05 [core.py:116] hello", "EngineCore", "INFO", "core.py", "hello"),
        (
            "(Worker_TP0_EP1 pid=7) ERROR 11-29 14:57:05 [a.py:9]     frame",
            "Worker_TP0_EP1",
            "ERROR",
            "a.py",
            "    frame",
        ),
        ("(VllmWorker rank=1 pid=7) ERROR 11-29 14:57:05 [a.py:9] x", "VllmWorker rank=1", "ERROR", "a.py", "x"),
        (
            "(APIServer pid=1) (EngineCore_0 pid=2) (VllmWorker TP0 pid=3) WARNING 09-07 11:25:27 [n.py:1] x",
            *("VllmWorker TP0", "WARNING", "n.py", "x"),
        ),
        (
            "(RayWorkerWrapper pid=3, ip=10.0.0.2) INFO 11-29 14:57:05 [a.py:9] x",
            "RayWorkerWrapper",
            "INFO",
            "a.py",
            "x",
        ),
        ("WARNING 06-13 11:42:20 _custom_ops.py:11] old", "", "WARNING", "_custom_ops.py", "old"),
        ("INFO gpu_worker.py] Free memory", "", "INFO", "gpu_worker.py", "Free memory"),
        (
            "(APIServer pid=1) INFO:     Application startup complete.",
            "APIServer",
            "INFO",
            "",
            "Application startup complete.",
        ),
        ("[rank0]: torch.OutOfMemoryError: CUDA", "rank0", "", "", "torch.OutOfMemoryError: CUDA"),
        ("vllm-1  | ERROR 11-29 14:57:05 [a.py:9] x", "", "ERROR", "a.py", "x"),
        ("2026-11-29T14:57:05.123456Z stdout F ERROR 11-29 14:57:05 [a.py:9] x", "", "ERROR", "a.py", "x"),
        ("│ (APIServer pid=1) INFO 10-20 03:21:02 [utils.py:328] x", "APIServer", "INFO", "utils.py", "x"),
        (
            "\x1b[1;36m(EngineCore pid=7)\x1b[0;0m INFO 11-29 14:57:05 [core.py:1] x",
            "EngineCore",
            "INFO",
            "core.py",
            "x",
        ),
        (
            "2026-05-01 21:17:45.026 | (EngineCore pid=187) ERROR 05-01 19:17:45 [core.py:1136] ValueError: x",
            *("EngineCore", "ERROR", "core.py", "ValueError: x"),
        ),
        (
            "411:2026-08-18T19:11:16+0200 sys0 vllm[76500]: (EngineCore pid=76500) ERROR 08-18 19:11:16 [core.py:13] x",
            *("EngineCore", "ERROR", "core.py", "x"),
        ),
        ("Nov 29 10:00:00 host vllm[12]: ERROR 11-29 10:00:00 [a.py:9] x", "", "ERROR", "a.py", "x"),
        ("12: not a stamp", "", "", "", "12: not a stamp"),
        ("Killed", "", "", "", "Killed"),
        ("", "", "", "", ""),
    ],
)
def test_a_line_is_taken_apart(raw: str, process: str, level: str, source: str, text: str) -> None:
    line = parse_line(raw, 1)
    assert (line.process, line.level, line.source, line.text) == (process, level, source, text)


def test_engine_and_server_are_told_apart() -> None:
    assert parse_line("(EngineCore_DP0 pid=7) x", 1).from_engine
    assert parse_line("[rank3]: x", 1).from_engine
    assert not parse_line("(APIServer_0 pid=7) x", 1).from_engine
    assert not parse_line("x", 1).from_engine


def test_a_stamp_that_is_no_date_is_none() -> None:
    assert parse_line("INFO 13-45 99:00:00 [a.py:1] x", 1).stamp is None
    assert parse_line("INFO 02-29 00:00:01 [a.py:1] x", 1).stamp == 59 * 86_400 + 1


def test_an_endless_line_is_cut() -> None:
    assert len(parse_line("x" * 10_000_000, 1).raw) == MAX_LINE_CHARS
