"""A study that is killed or interrupted goes on with the same command: nothing lost, nothing twice, nothing left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from autotune.outcome import Broken, Measured, TrialRecord
from autotune.study import open_study
from tests.desk import Desk, wait_for_event

SHORT = ("run", "tiny.yaml", "--json", "--trials", "2")
SEARCH_ONLY = (*SHORT, "--set", "confirm.rounds=0")


def measuring(trial: int) -> Any:
    return lambda event: event["event"] == "stage" and event["trial"] == trial and event["stage"] == "measure"


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def measured(records: tuple[TrialRecord, ...]) -> list[TrialRecord]:
    return [record for record in records if isinstance(record.outcome, Measured)]


def interrupted(records: tuple[TrialRecord, ...]) -> list[int]:
    return [r.number for r in records if isinstance(r.outcome, Broken) and r.outcome.cause == "interrupted"]


def test_killed_in_the_search_and_in_the_confirmation(desk: Desk) -> None:
    desk.write()
    first = desk.start(*SHORT)
    wait_for_event(first, measuring(1))
    assert desk.engines(), "an engine runs while the tuner is killed"
    kill(first)
    desk.wait_until_nothing_is_left()
    kept = desk.result().records
    assert [record.number for record in kept] == [0]

    second = desk.start(*SHORT)
    wait_for_event(second, lambda event: event["event"] == "confirmation_started")
    wait_for_event(second, lambda event: event["event"] == "stage" and event["stage"] == "measure")
    kill(second)
    desk.wait_until_nothing_is_left()

    done = desk.run("run", "tiny.yaml", "--trials", "2")
    assert done.returncode == 0, done.stderr
    records = desk.result().records
    assert records[0] == kept[0], "a finished trial stays as it is"
    assert [record.number for record in records] == list(range(len(records)))
    assert interrupted(records) == [1, 3]
    again = next(record for record in records if record.number == 2)
    assert again.config == records[1].config, "the killed trial is run again, and nothing else before it"
    assert again.attempt == 2
    search = [record.config.hash for record in measured(records) if record.proposal.origin != "confirm"]
    assert len(search) == len(set(search)) == 2
    assert len([record for record in measured(records) if record.proposal.origin == "confirm"]) == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_interrupted(desk: Desk, number: signal.Signals) -> None:
    desk.write()
    process = desk.start(*SEARCH_ONLY)
    wait_for_event(process, measuring(1))
    if number is signal.SIGINT:
        os.killpg(process.pid, number)  # a terminal sends it to everybody in the foreground
    else:
        process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "finished trials are kept. Go on with: autotune run tiny.yaml" in errors
    assert desk.left() == [], "everything is gone when the command returns"

    done = desk.run(*SEARCH_ONLY)
    assert done.returncode == 0, done.stderr
    records = desk.result().records
    assert interrupted(records) == [1]
    assert [record.config for record in measured(records)] == [records[0].config, records[1].config]


def test_interrupted_while_an_engine_starts(desk: Desk) -> None:
    desk.write()
    process = desk.start(*SEARCH_ONLY, "--set", "engine.simulate.startup=1")
    wait_for_event(process, lambda event: event["event"] == "trial_started")
    deadline = time.monotonic() + 30
    while not desk.engines():
        assert time.monotonic() < deadline
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert desk.left() == []


def test_one_tuner_at_a_time(desk: Desk) -> None:
    study = open_study(desk.write())
    with study.locked():
        second = desk.run("run", "tiny.yaml")
    assert second.returncode == 3
    assert "is being run by another process" in second.stderr
    assert "autotune status" in second.stderr
    assert "Traceback" not in second.stderr


TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
"""Runs its arguments in a terminal of their own and passes on what is typed and shown."""


def in_terminal(desk: Desk, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", TERMINAL, sys.executable, "-m", "autotune", *words], cwd=desk.folder,
        env=desk.environment(TERM="xterm-256color", LINES="40"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip


def test_the_live_screen(desk: Desk) -> None:
    desk.write()
    with in_terminal(desk, "run", "tiny.yaml", "--trials", "2", "--set", "confirm.rounds=0") as process:
        shown = process.communicate(timeout=100)[0].decode()
    assert process.returncode == 0, shown
    assert "\x1b[?25l" in shown and shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l"), "the cursor is back"
    assert "of 2 trials of the search" in shown and "simulated" in shown
    assert "front" in shown
    end = shown[shown.rfind("\x1b[?25h") :]
    assert "Keep what you run today" in end
    assert "Traceback" not in shown


def test_ctrl_c_in_a_terminal(desk: Desk) -> None:
    desk.write()
    with in_terminal(desk, "run", "tiny.yaml", "--trials", "2") as process:
        assert process.stdout is not None and process.stdin is not None
        shown = b""
        while b"measure" not in shown:
            chunk = os.read(process.stdout.fileno(), 65536)
            assert chunk, shown.decode()
            shown += chunk
        process.stdin.write(b"\x03")
        process.stdin.flush()
        began = time.monotonic()
        rest = process.communicate(timeout=30)[0].decode()
    assert process.returncode == 130, rest
    assert time.monotonic() - began < 20
    assert "Go on with: autotune run tiny.yaml" in rest
    assert "\x1b[?25h" in rest and "Traceback" not in rest
    assert desk.left() == []
