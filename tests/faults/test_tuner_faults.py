"""What can happen to a study: the real command line on the simulator. After each: nothing lost, nothing left, goes on.

Each fault ends with the same look: the command goes on without the fault, and every trial that was finished before is
in the study exactly as it was.
"""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from autotune.engine.failure_values import FailureClass
from autotune.outcome import Broken, Infeasible, Measured, TrialRecord
from tests.desk import STUDY, Desk, events, wait_for_event

SEARCH = ("run", "tiny.yaml", "--json", "--set", "confirm.rounds=0", "--trials")
FAULTY = STUDY.replace(
    STUDY[STUDY.index("  parameters:") : STUDY.index("load:")],
    "  parameters:\n    AUTOTUNE_SIM_FAULT: {choice: [log_flood, FAULT], env: true}\n",
)
"""A study with two configurations beside the baseline: one whose log is long, and one with a real fault."""

Event = dict[str, Any]


def stage(trial: int, name: str, detail: str = "") -> Callable[[Event], bool]:
    return lambda e: e["event"] == "stage" and e["trial"] == trial and e["stage"] == name and detail in e["detail"]


def finished(trial: int) -> Callable[[Event], bool]:
    return lambda event: event["event"] == "trial_finished" and event["trial"] == trial


def records(desk: Desk) -> tuple[TrialRecord, ...]:
    return desk.result().records


def goes_on(desk: Desk, kept: tuple[TrialRecord, ...], trials: int = 2) -> tuple[TrialRecord, ...]:
    """Run the study to its end without a fault; what was finished before must be in it unchanged."""
    desk.wait_until_nothing_is_left()
    desk.variables.clear()
    done = desk.run(*SEARCH, str(trials))
    assert done.returncode == 0, done.stderr
    desk.wait_until_nothing_is_left()
    now = records(desk)
    assert now[: len(kept)] == kept, "a finished trial stays as it is"
    assert [record.number for record in now] == list(range(len(now)))
    assert sum(isinstance(record.outcome, Measured) for record in now) == trials
    return now


def said(process: subprocess.CompletedProcess[str] | subprocess.Popen[str], errors: str) -> str:
    """What a command that failed has told; never a traceback."""
    assert "Traceback" not in errors, errors
    assert process.returncode not in (0, None) and process.returncode > 0, errors
    return errors


# --- the tuner dies --------------------------------------------------------------------------------------------------

STAGES: dict[str, tuple[int, Callable[[Event], bool], dict[str, str]]] = {
    "start": (1, stage(1, "start", "weights"), {}),
    "warm-up": (1, stage(1, "measure", "warmup"), {}),
    "measured window": (1, stage(1, "measure", "window"), {}),
    "stop": (1, finished(0), {"AUTOTUNE_SIM_FAULT": "ignore_sigterm"}),
}
"""How many trials are finished then, the event to kill at, and variables: a deaf engine takes long to be stopped."""


@pytest.mark.parametrize("when", STAGES)
def test_study_is_killed(desk: Desk, when: str) -> None:
    done, wanted, variables = STAGES[when]
    desk.write(
        STUDY.replace("kind: simulated", "kind: simulated\n  live: false")
        .replace("startup: 0.02", "startup: 0.2")
        .replace("warmup: {requests: 4,", "warmup: {requests: 40,")  # long enough to be seen on a busy machine
    )
    desk.variables.update(variables)
    process = desk.start(*SEARCH, "1" if when == "stop" else "2")
    wait_for_event(process, wanted)
    if when == "stop":
        # The event comes just before the engine is told to end, which it does not hear.
        assert desk.engines()
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = records(desk)
    assert len(kept) == done
    now = goes_on(desk, kept)
    lost = [r.number for r in now if isinstance(r.outcome, Broken) and r.outcome.cause == "interrupted"]
    assert lost == ([] if when == "stop" else [1])


def test_two_tuners_on_one_study(desk: Desk) -> None:
    desk.write(STUDY.replace("speed: 20", "speed: 1"))  # slow: it still runs when the other comes
    first = desk.start(*SEARCH, "2")
    wait_for_event(first, stage(0, "measure"))
    second = desk.run(*SEARCH, "2")
    assert "is being run by another process" in said(second, second.stderr)
    _, errors = first.communicate(timeout=60)
    assert first.returncode == 0, errors
    assert len(records(desk)) == 2
    goes_on(desk, records(desk))


# --- the disk --------------------------------------------------------------------------------------------------------


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of 4 MiB, where this user may mount one."""
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True)
    if made.returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path, name: str = "ballast") -> Path:
    """A file that takes all that is free."""
    ballast = folder / name
    with ballast.open("wb", buffering=0) as stream:
        for block in (1 << 16, 1 << 9, 1):
            try:
                while True:
                    stream.write(b"\0" * block)
            except OSError:
                continue
    return ballast


def test_disk_is_full_from_a_trial_on(desk: Desk) -> None:
    desk.write()
    with small_disk(desk.folder / "tiny"):
        process = desk.start(*SEARCH, "2")
        wait_for_event(process, stage(1, "measure"))
        kept = records(desk)
        ballast = fill(desk.folder / "tiny")
        _, errors = process.communicate(timeout=60)
        assert "No space left on device" in said(process, errors) or "database" in errors
        fill(desk.folder / "tiny", "more")  # what was set aside for the last record is free again
        again = desk.run(*SEARCH, "2")
        assert "df -h" in said(again, again.stderr)
        ballast.unlink()
        (desk.folder / "tiny" / "more").unlink()
        assert len(kept) == 1
        goes_on(desk, kept)


def test_files_may_not_grow(desk: Desk) -> None:
    """Any write beyond a size fails (EFBIG), as under a quota: the study says so and goes on later."""
    desk.write()
    process = desk.start(*SEARCH, "2")
    wait_for_event(process, stage(1, "measure"))
    kept = records(desk)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    _, errors = process.communicate(timeout=60)
    said(process, errors)
    goes_on(desk, kept)


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """A file or folder that nobody can write, root neither."""
    if subprocess.run(["mount", "--bind", str(path), str(path)], capture_output=True, check=False).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(path)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.mark.parametrize(
    ("what", "words"), [("", "tiny cannot be written: Read-only"), ("study.db", "readonly database")],
    ids=["folder", "file"],
)  # fmt: skip
def test_read_only_database(desk: Desk, what: str, words: str) -> None:
    desk.write()
    assert desk.run(*SEARCH, "1").returncode == 0
    kept = records(desk)
    with read_only(desk.folder / "tiny" / what):
        refused = desk.run(*SEARCH, "2")
        assert words in said(refused, refused.stderr)
    goes_on(desk, kept)


# --- the engine under the load of a study ----------------------------------------------------------------------------


def faulty(desk: Desk, fault: str) -> tuple[subprocess.CompletedProcess[str], list[TrialRecord]]:
    """Run a study of which one configuration has `fault`; what became of that one."""
    desk.write(FAULTY.replace("log_flood, FAULT", json.dumps(["log_flood", fault])[1:-1]))
    done = desk.run(*SEARCH, "3", "--set", "engine.hang_timeout=5")
    assert "Traceback" not in done.stderr, done.stderr
    desk.wait_until_nothing_is_left()
    found = [record for record in records(desk) if ("AUTOTUNE_SIM_FAULT", fault) in record.config.env]
    assert found, done.stdout
    others = [record for record in records(desk) if record not in found]
    assert others and all(isinstance(record.outcome, Measured) for record in others), "a fault stays with its trial"
    return done, found


def test_engine_dies_in_the_measured_window(desk: Desk) -> None:
    done, found = faulty(desk, "die_after:24")
    for record in found:
        assert isinstance(record.outcome, Broken)
        assert record.outcome.cause == FailureClass.ENGINE_DEAD_GENERIC
        assert dict(record.stage_seconds).get("load", 0) > 0
    assert len(found) == 2, "it is repeated once, then it is given up"
    assert done.returncode == 0, "one configuration that always breaks says nothing about the machine"


def test_garbage_in_the_streams(desk: Desk) -> None:
    done, found = faulty(desk, "garbage_sse")
    assert done.returncode == 0, done.stderr
    assert all(isinstance(record.outcome, Broken | Infeasible) for record in found)
    assert any("not JSON" in record.outcome.reason for record in found if not isinstance(record.outcome, Measured))


def test_garbage_and_half_lines_on_metrics_of_a_study(desk: Desk) -> None:
    """The server's own figures are only a second opinion: the trial counts, with what the client saw."""
    done, (record,) = faulty(desk, "garbage_metrics")
    assert done.returncode == 0, done.stderr
    assert isinstance(record.outcome, Measured)


# --- the clock -------------------------------------------------------------------------------------------------------

JUMPING = """\
import os, time
_true = time.time
time.time = lambda: _true() + (float(os.environ["STEP_S"]) if os.path.exists(os.environ["STEP_AT"]) else 0.0)
"""
"""A sitecustomize module: the wall clock of the whole process tree jumps as soon as a file is there."""


@pytest.mark.parametrize("step", ["-86400", "86400"], ids=["a day back", "a day ahead"])
def test_wall_clock_steps(desk: Desk, step: str) -> None:
    desk.write()
    patch = desk.folder / "patch"
    patch.mkdir()
    (patch / "sitecustomize.py").write_text(JUMPING)
    flag = desk.folder / "now"
    desk.variables.update(PYTHONPATH=str(patch), STEP_S=step, STEP_AT=str(flag))
    process = desk.start(*SEARCH, "3")
    began = time.monotonic()
    before = wait_for_event(process, stage(1, "measure", "window"))[-1]["time"]
    flag.touch()
    assert process.stdout is not None
    times = [event["time"] for event in events(process.stdout)]
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert abs(times[-1] - before - float(step)) < 3600, "the clock has jumped"
    spent = time.monotonic() - began
    now = records(desk)
    assert [type(record.outcome) for record in now] == [Measured] * 3
    for record in now:
        assert 0 < record.seconds < spent
        assert all(0 <= seconds < spent for _, seconds in record.stage_seconds)
    figures = [dict(r.outcome.load.levels[0].metrics) for r in now if isinstance(r.outcome, Measured)]
    assert all(0 < figure["ttft_p90_ms"].value < 10_000 for figure in figures)
    goes_on(desk, now, trials=3)
