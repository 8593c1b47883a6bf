"""For every test: a state folder of its own, and a failure for whoever leaves a process, a lease or a run record."""

from __future__ import annotations

import os
import secrets
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.engine.runs import read_runs, read_starts
from autotune.host.leases import LeaseBook
from autotune.host.processes import command_line, environment_value, own_pids, start_ticks
from tests.desk import Desk

MARK = "AUTOTUNE_TEST"
PATIENCE_S = 10.0
KEPT = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Python's own processes: one for a whole test session, made by whichever test is first to need it."""


@pytest.fixture(autouse=True)
def nothing_stays_behind(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Whatever a test starts carries its mark, and is gone when the test has ended."""
    mark = secrets.token_hex(8)
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setenv("AUTOTUNE_STATE", str(tmp_path_factory.mktemp("state")))
    yield
    deadline = time.monotonic() + PATIENCE_S
    while (left := processes_of(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    problems = [f"process {pid}: {command_line(pid)}" for pid in left]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    problems += [f"lease {holder.resource}" for holder in LeaseBook().holders()]
    problems += [f"record {start}" for run in read_runs() if run.tuner.alive for start in read_starts(run.run)]
    assert problems == []


def processes_of(mark: str) -> list[int]:
    """Living processes that were started by the test with this mark, the test itself apart."""
    found = []
    for pid in own_pids():
        if pid == os.getpid() or environment_value(pid, MARK) != mark or start_ticks(pid) is None:
            continue
        if not any(kept in command_line(pid) for kept in KEPT):
            found.append(pid)
    return found


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """A fresh desk; the test fails when anything of it is left."""
    scratch = Path(tempfile.mkdtemp(prefix="e2e-"))
    made = Desk(tmp_path, scratch)
    yield made
    made.close()
    try:
        made.wait_until_nothing_is_left()
    finally:
        for pid in made.processes():
            os.kill(pid, signal.SIGKILL)
        for path in sorted(scratch.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        scratch.rmdir()
