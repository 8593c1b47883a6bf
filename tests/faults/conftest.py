"""After each fault: nothing may be left. A fixture fails the test that leaves a process, port, lease or file."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.engine.cleanup import find_leftovers
from autotune.engine.listeners import listening_inodes
from autotune.engine.protocol import Lease, RunningEngine, StartFailure
from autotune.engine.registry import create_engine
from autotune.engine.runs import START_VARIABLE, read_runs, read_starts
from autotune.host.leases import LeaseBook
from autotune.host.processes import environment_value, own_pids, start_ticks
from autotune.space.config import EngineConfig
from autotune.spec.study import StudySpec

TUNER = Path(__file__).with_name("tuner.py")
MODEL = "Qwen/Qwen3-8B"


def simulated(fault: str = "", **env: str) -> StudySpec:
    """A study on the simulator with processes like vLLM's, quick to start."""
    variables = {"AUTOTUNE_SIM_PROCS": "1", "AUTOTUNE_SIM_STARTUP": "0", **env}
    if fault:
        variables["AUTOTUNE_SIM_FAULT"] = fault
    engine = {"kind": "simulated", "simulate": {"speed": 20}, "env": variables, "ready_timeout": 60}
    return StudySpec.model_validate({"name": "fault", "model": MODEL, "engine": engine})


async def start(folder: Path, fault: str = "", **env: str) -> RunningEngine:
    result = await create_engine(simulated(fault, **env)).start(EngineConfig(), Lease((), 0), folder=folder)
    assert not isinstance(result, StartFailure), result.failure.reason
    return result


async def start_fails(folder: Path, spec: StudySpec, args: dict[str, object] | None = None) -> StartFailure:
    result = await create_engine(spec).start(EngineConfig.of(args), Lease((), 0), folder=folder)
    assert isinstance(result, StartFailure)
    return result


async def until(condition: Callable[[], object], seconds: float = 10.0) -> float:
    """Wait for a condition; how long it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "it did not happen in time"
        await asyncio.sleep(0.02)
    return time.monotonic() - began


def alive(pids: tuple[int, ...]) -> list[int]:
    return [pid for pid in pids if start_ticks(pid) is not None]


def named(running: RunningEngine, name: str) -> int:
    """The process of an engine whose title contains `name`."""
    for pid in running.processes():
        title = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/comm").read_bytes()
        if name.encode() in title:
            return pid
    raise AssertionError(f"no {name} among {running.processes()}")


@dataclass
class Tuner:
    """A tuner in a process of its own, with an engine."""

    process: subprocess.Popen[str]
    engine: tuple[int, ...] = ()
    supervisor: int = 0
    port: int = 0

    @property
    def all(self) -> tuple[int, ...]:
        return (*self.engine, self.supervisor)


@pytest.fixture
def tuner(tmp_path: Path) -> Iterator[Callable[..., Tuner]]:
    started: list[subprocess.Popen[str]] = []

    def begin(fault: str = "", *, wait_for: str = "ready") -> Tuner:
        process = subprocess.Popen(
            [sys.executable, str(TUNER), str(tmp_path / "trial"), fault], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        for line in process.stdout:
            word, *numbers = line.split()
            if word == "ready":
                values = [int(number) for number in numbers]
                return Tuner(process, tuple(values[2:]), values[0], values[1])
            if word == wait_for:
                return Tuner(process)
        raise AssertionError("the tuner ended")

    yield begin
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    state = tmp_path / "state"
    monkeypatch.setenv("AUTOTUNE_STATE", str(state))
    scratch = tmp_path / "t"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    yield
    deadline = time.monotonic() + 15
    while (left := _ours(state)) and time.monotonic() < deadline:
        time.sleep(0.05)
    while not (list(scratch.glob("autotune-*")) == [] and find_leftovers().processes == ()):
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)  # the supervisor ends last
    problems = [f"process {pid}: {Path(f'/proc/{pid}/cmdline').read_bytes()!r}" for pid in left]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    problems += [f"folder {path}" for path in scratch.glob("autotune-*")]
    problems += [f"lease {holder.resource}" for holder in LeaseBook().holders()]
    problems += [f"record {start}" for run in read_runs() if run.tuner.alive for start in read_starts(run.run)]
    assert problems == []
    assert find_leftovers().processes == ()


def _ours(state: Path) -> set[int]:
    """Engine processes of this test: those with a mark of ours whose state folder is this test's."""
    return {
        pid
        for pid in own_pids()
        if environment_value(pid, START_VARIABLE)
        and environment_value(pid, "AUTOTUNE_STATE") == str(state)
        and start_ticks(pid) is not None
    }


def listens(port: int) -> bool:
    return bool(listening_inodes(port))


Waiter = Callable[[Callable[[], object]], Awaitable[float]]
