"""The record of what this run has started, so that a later `autotune clean` finds it and nothing else.

Every engine process carries ``AUTOTUNE_RUN`` (this run) and ``AUTOTUNE_START`` (this start) in its environment. Beside
that, ``<state>/runs/<run>.json`` says which tuner the run was, and ``<state>/runs/<run>.<start>.json`` which
processes and temporary folder a start had; the second is removed when the engine has been stopped.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from autotune.host.processes import ProcessId
from autotune.host.state import state_dir

RUN_VARIABLE = "AUTOTUNE_RUN"
START_VARIABLE = "AUTOTUNE_START"


@dataclass(frozen=True, slots=True)
class StartRecord:
    """What one start left on the host.

    Attributes:
        run: id of the run.
        start: id of this start.
        supervisor: the process that guards the engine.
        main: the engine's first process, leader of its session.
        scratch: temporary folder of this start, empty for none.
    """

    run: str
    start: str
    supervisor: ProcessId | None
    main: ProcessId | None
    scratch: str = ""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run of the tool and the process that it was."""

    run: str
    tuner: ProcessId
    started_at: float


_current: RunRecord | None = None


def current_run() -> RunRecord:
    """The record of this process, written at its first use (a forked child gets its own)."""
    global _current
    if _current is None or _current.tuner.pid != os.getpid():
        me = ProcessId.of(os.getpid()) or ProcessId(os.getpid(), 0)
        _current = RunRecord(secrets.token_hex(8), me, time.time())
        write_json(runs_folder() / f"{_current.run}.json", asdict(_current))
        atexit.register(_forget_if_clean, _current)
        for old in read_runs():
            if not old.tuner.alive:
                _forget_if_clean(old)
    return _current


def _forget_if_clean(record: RunRecord) -> None:
    """A run that left nothing needs no record. A forked child must not speak for its parent."""
    with contextlib.suppress(OSError):
        if (record.tuner.pid == os.getpid() or not record.tuner.alive) and not read_starts(record.run):
            forget_run(record.run)


def runs_folder() -> Path:
    """Where run records lie."""
    folder = state_dir() / "runs"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def record_path(run: str, start: str) -> Path:
    """Where the record of a start lies."""
    return runs_folder() / f"{run}.{start}.json"


def remember_start(record: StartRecord) -> Path:
    """Write down a start; the returned file is to be removed when nothing is left of it."""
    path = record_path(record.run, record.start)
    write_json(path, asdict(record))
    return path


def read_runs() -> tuple[RunRecord, ...]:
    """All runs that left a record; damaged files are passed over."""
    found = []
    for path in sorted(runs_folder().glob("*.json")):
        if path.name.count(".") != 1:
            continue
        try:
            data = json.loads(path.read_text())
            found.append(RunRecord(data["run"], _process(data["tuner"]), float(data["started_at"])))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return tuple(found)


def read_starts(run: str) -> tuple[StartRecord, ...]:
    """The starts of a run that have not been stopped."""
    found = []
    for path in sorted(runs_folder().glob(f"{run}.*.json")):
        try:
            data = json.loads(path.read_text())
            found.append(
                StartRecord(
                    run=data["run"],
                    start=data["start"],
                    supervisor=_process(data["supervisor"]) if data["supervisor"] else None,
                    main=_process(data["main"]) if data["main"] else None,
                    scratch=data["scratch"],
                )
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return tuple(found)


def forget_run(run: str) -> None:
    """Remove a run's records."""
    for path in (*runs_folder().glob(f"{run}.*.json"), runs_folder() / f"{run}.json"):
        path.unlink(missing_ok=True)


def write_json(path: Path, value: object) -> None:
    """Write a whole file or none."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(value))
    partial.replace(path)


def _process(data: dict[str, object]) -> ProcessId:
    return ProcessId(int(str(data["pid"])), int(str(data["ticks"])), str(data["boot"]))
