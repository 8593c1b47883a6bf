"""Finds and ends what earlier runs of this tool left, and nothing else.

A process is ours only if its environment carries the id of a run that has a record on this host, or if it is in the
session of an engine that such a record names by pid and start time. A run whose tuner still lives is left alone.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from autotune.engine import supervisor as guard
from autotune.engine.runs import RUN_VARIABLE, RunRecord, StartRecord, forget_run, read_runs, read_starts
from autotune.engine.supervised import marked, session_members
from autotune.host.leases import LeaseBook
from autotune.host.processes import command_line

TERM_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class LeftProcess:
    """A process of an engine whose run is over."""

    pid: int
    run: str
    command: str


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Everything that was found.

    Attributes:
        processes: to be ended.
        folders: temporary folders to be removed.
        runs: ids of runs that are over; their records go last.
        shared_memory: files in /dev/shm that those processes hold.
        alive: runs that still run and are left alone, with the tuner's pid.
    """

    processes: tuple[LeftProcess, ...] = ()
    folders: tuple[Path, ...] = ()
    runs: tuple[str, ...] = ()
    shared_memory: tuple[str, ...] = ()
    alive: tuple[tuple[str, int], ...] = ()

    @property
    def empty(self) -> bool:
        """Nothing is left of any earlier run."""
        return not (self.processes or self.folders or self.shared_memory)


def find_leftovers() -> Leftovers:
    """Look, and touch nothing."""
    processes: dict[int, LeftProcess] = {}
    folders: list[Path] = []
    over: list[str] = []
    alive: list[tuple[str, int]] = []
    for run in read_runs():
        if run.tuner.alive:
            alive.append((run.run, run.tuner.pid))
            continue
        over.append(run.run)
        starts = read_starts(run.run)
        for pid in _processes_of(run, starts):
            processes[pid] = LeftProcess(pid, run.run, command_line(pid)[:160])
        folders += [path for start in starts if (path := _scratch(start)) is not None]
    shared = guard.shm_of(list(processes), guard.shm_names())
    return Leftovers(tuple(processes.values()), tuple(folders), tuple(over), tuple(sorted(shared)), tuple(alive))


def remove_leftovers(found: Leftovers) -> tuple[str, ...]:
    """End and remove what `find_leftovers` found; what would not go, in words."""
    known = frozenset(found.runs)
    _signal(found, signal.SIGTERM, known)
    deadline = time.monotonic() + TERM_SECONDS
    while (left := _living(found, known)) and time.monotonic() < deadline:
        time.sleep(0.05)
    deadline = time.monotonic() + guard.KILL_DEADLINE
    while (left := _living(found, known)) and time.monotonic() < deadline:
        for pid in left:
            guard.send(pid, signal.SIGKILL)
        time.sleep(0.05)
    problems = [f"process {pid} survives SIGKILL" for pid in left]
    for name in found.shared_memory:
        Path(guard.SHM, name).unlink(missing_ok=True)
    for folder in found.folders:
        shutil.rmtree(folder, ignore_errors=True)
    if not problems:
        for run in found.runs:
            forget_run(run)
    LeaseBook().holders()  # reading drops the leases of dead processes
    return tuple(problems)


def _processes_of(run: RunRecord, starts: tuple[StartRecord, ...]) -> set[int]:
    pids = set(marked(RUN_VARIABLE, run.run))
    for start in starts:
        if start.main is not None:
            pids |= session_members(start.main)
        if start.supervisor is not None and start.supervisor.alive:
            pids.add(start.supervisor.pid)
    return pids


def _living(found: Leftovers, runs: frozenset[str]) -> list[int]:
    """Those that still live, looked up again: a pid may have been given to somebody else meanwhile."""
    now = {process.pid for process in find_leftovers().processes if process.run in runs}
    return [process.pid for process in found.processes if process.pid in now] + sorted(
        now - {process.pid for process in found.processes}
    )


def _signal(found: Leftovers, number: int, runs: frozenset[str]) -> None:
    for pid in _living(found, runs):
        guard.send(pid, number)
        guard.send(pid, signal.SIGCONT)


def _scratch(start: StartRecord) -> Path | None:
    """The temporary folder of a start, if it is one of ours by place and name and still there."""
    path = Path(start.scratch)
    mine = start.scratch and path.name.startswith("autotune-") and path.parent == Path(tempfile.gettempdir())
    return path if mine and path.is_dir() and not path.is_symlink() else None
