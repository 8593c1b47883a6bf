"""The tuner's end of the supervisor: start a job, know its processes, hear of its end, stop it, prove it gone."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autotune.engine import supervisor as guard
from autotune.engine.runs import RUN_VARIABLE, START_VARIABLE, StartRecord, current_run, record_path, remember_start
from autotune.errors import EnvironmentFault
from autotune.host.processes import ProcessId, boot_id, environment_value, own_pids, start_ticks

LOG_CAP = 64 << 20
LOG_KEEP = 4 << 20
SUPERVISOR = Path(guard.__file__)
SCRATCH = "{scratch}"


@dataclass(frozen=True, slots=True)
class Launch:
    """A command to run under the supervisor. The environment may hold secrets, so it has no representation."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    log: Path
    cpus: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"Launch({self.argv[0]!r}, {len(self.argv)} words)"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended."""

    seconds: float
    killed: bool
    leftovers: tuple[str, ...]


class Job(Protocol):
    """What was started, as those see it who wait for it, ask for it and end it."""

    @property
    def refused(self) -> str | None:
        """Why the command cannot be executed at all."""

    @property
    def exit_code(self) -> int | None:
        """Of the main process, once it has ended."""

    @property
    def ended(self) -> bool:
        """The main process is gone, or there is nobody left who would know."""

    def processes(self) -> tuple[int, ...]:
        """Living processes of the job."""

    @property
    def known_processes(self) -> tuple[int, ...]:
        """All processes that the job was ever seen with, the dead ones too."""

    async def wait_over(self) -> None:
        """Wait until the main process has ended."""

    async def stop(self, grace: float) -> Ended:
        """End everything; may be called twice. `grace` is what SIGTERM gets before SIGKILL, in seconds."""


class SupervisedJob:
    """A running job. Made by `launch`; after `stop` has returned, none of its processes is left."""

    def __init__(self, process: asyncio.subprocess.Process, start: str, scratch: Path) -> None:
        self._process = process
        self.start_id = start
        self.scratch = scratch
        self._marks = {RUN_VARIABLE: current_run().run, START_VARIABLE: start}
        self.main = 0
        self.refused: str | None = None
        self.exit_code: int | None = None
        self.lost_supervisor = False
        self._main_id: ProcessId | None = None
        self._record: Path | None = None
        self._stopped: Ended | None = None
        self._final: Ended | None = None
        self._remembered: dict[int, int] = {}
        self._began = asyncio.Event()
        self._over = asyncio.Event()
        self._ending = asyncio.Lock()
        self._reader = asyncio.create_task(self._listen())

    @property
    def ended(self) -> bool:
        """The main process is gone, or there is nobody left who would know."""
        return self.exit_code is not None or self.lost_supervisor or self.refused is not None

    def processes(self) -> tuple[int, ...]:
        """Living processes of the job, the supervisor not counted."""
        pids = guard.descendants(self._process.pid) if not self.lost_supervisor else list(self._survivors())
        for pid in pids:
            if pid not in self._remembered and (ticks := start_ticks(pid)) is not None:
                self._remembered[pid] = ticks
        return tuple(pids)

    @property
    def known_processes(self) -> tuple[int, ...]:
        """All processes that the job was ever seen with, the dead ones too."""
        return tuple(self._remembered)

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """`env` with what marks a process as one of this job, and with temporary files where they end with it.

        vLLM leaves a file `vllm_dist_...` behind at every start. Torch's kernel cache stays where it would be anyway.
        """
        temporary = env.get("TMPDIR") or tempfile.gettempdir()
        kernels = Path(temporary) / ("torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", _user()))
        return {
            "VLLM_RPC_BASE_PATH": str(self.scratch),
            "TORCHINDUCTOR_CACHE_DIR": str(kernels),
            **env,
            **self._marks,
            "TMPDIR": str(self.scratch),
            # setproctitle, which vLLM uses, would overwrite the environment that our marker lives in.
            "SPT_NOENV": "1",
        }

    async def follow_log(self, log: Path) -> None:
        """The job writes to another file from now on; that one is kept small too."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"command": "log", "path": str(log)}).encode() + b"\n")
        await self._process.stdin.drain()

    async def wait_over(self) -> None:
        """Wait until the main process has ended."""
        await self._over.wait()

    async def stop(self, grace: float) -> Ended:
        """End everything; may be called twice. `grace` is what SIGTERM gets before SIGKILL, in seconds."""
        async with self._ending:
            if self._final is None:
                self._final = await asyncio.shield(self._end(grace))
            return self._final

    async def _end(self, grace: float) -> Ended:
        began = time.monotonic()
        self.processes()
        with contextlib.suppress(OSError, RuntimeError):
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"command": "stop", "grace": grace}).encode() + b"\n")
            await self._process.stdin.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace + guard.AFTER_MAIN + guard.KILL_DEADLINE + 5):
                await self._process.wait()
        killed = False
        if self._process.returncode is None:
            # It was stopped by a signal or hangs: do its work ourselves.
            self._process.kill()
            await self._process.wait()
        async with asyncio.timeout(5):
            await asyncio.shield(self._reader)
        leftovers: list[str] = []
        if survivors := self._survivors():
            killed = True
            leftovers += await _sweep(self._survivors, deadline=guard.KILL_DEADLINE)
            del survivors
        if self._stopped is not None:
            killed, leftovers = killed or self._stopped.killed, [*self._stopped.leftovers, *leftovers]
        shutil.rmtree(self.scratch, ignore_errors=True)
        if self._record is not None and not leftovers:
            self._record.unlink(missing_ok=True)
        return Ended(time.monotonic() - began, killed, tuple(leftovers))

    def _survivors(self) -> tuple[int, ...]:
        """Processes of this start, also where the supervisor is gone: by marker, session and memory."""
        found = set(marked(START_VARIABLE, self.start_id)) - {self._process.pid}
        found |= {pid for pid, ticks in self._remembered.items() if start_ticks(pid) == ticks}
        if self._main_id is not None:
            found |= session_members(self._main_id)
        return tuple(sorted(found))

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                self._hear(json.loads(line))
        self.lost_supervisor = self._stopped is None and self.refused is None
        self._began.set()
        self._over.set()

    def _hear(self, event: dict[str, object]) -> None:
        match event.get("event"):
            case "started":
                self.main = int(str(event["pid"]))
                self._main_id = ProcessId.of(self.main)
                self._remembered[self.main] = int(str(event["ticks"]))
                self._began.set()
            case "refused":
                self.refused = str(event["error"])
            case "exited":
                self.exit_code = int(str(event["code"]))
                self._over.set()
            case "stopped":
                words = event["leftovers"]
                self._stopped = Ended(0.0, bool(event["killed"]), tuple(words) if isinstance(words, list) else ())

    async def begin(self, launch: Launch, grace: float) -> None:
        """Hand the job over and wait until the engine's process exists or was refused."""
        job: guard.Job = {
            "argv": list(launch.argv),
            "env": dict(launch.env),
            "cwd": str(launch.cwd),
            "log": str(launch.log),
            "log_cap": LOG_CAP,
            "log_keep": LOG_KEEP,
            "cpus": list(launch.cpus),
            "grace": grace,
            "folder": str(self.scratch),
            "record": str(record_path(current_run().run, self.start_id)),
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job).encode() + b"\n")
        await self._process.stdin.drain()
        async with asyncio.timeout(30):
            await self._began.wait()
        self._record = remember_start(
            StartRecord(
                current_run().run, self.start_id, ProcessId.of(self._process.pid), self._main_id, str(self.scratch)
            )
        )


async def launch(
    argv: Sequence[str], env: Mapping[str, str], *, folder: Path, log: Path, grace: float, cpus: tuple[int, ...] = ()
) -> SupervisedJob:
    """Start `argv` under a supervisor of its own.

    Args:
        argv: the command; nothing secret. `SCRATCH` in a word stands for the job's own folder for sockets.
        env: its whole environment; our two markers are added.
        folder: working directory.
        log: file that stdout and stderr are appended to.
        grace: seconds between SIGTERM and SIGKILL where nobody says otherwise.
        cpus: processors that it is bound to; empty for all.

    Raises:
        EnvironmentFault: the supervisor itself cannot be started.
    """
    start = secrets.token_hex(8)
    marks = {RUN_VARIABLE: current_run().run, START_VARIABLE: start}
    scratch = Path(tempfile.mkdtemp(prefix="autotune-"))
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            str(SUPERVISOR),
            str(scratch),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**marks, "PATH": os.environ.get("PATH", os.defpath)},
            start_new_session=True,
        )
    except OSError as error:
        shutil.rmtree(scratch, ignore_errors=True)
        raise EnvironmentFault(
            f"no process can be started: {error}", hint="Look at ulimit -u and free memory."
        ) from None
    except BaseException:  # cancelled: asyncio has ended the process
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    job = SupervisedJob(process, start, scratch)
    words = tuple(word.replace(SCRATCH, str(scratch)) for word in argv)
    try:
        await job.begin(Launch(words, job.environment(env), folder, log, cpus), grace)
    except BaseException:
        await asyncio.shield(job.stop(0.0))
        raise
    return job


def _user() -> str:
    """As torch names a user in the name of its cache."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid_{os.getuid()}"


def marked(variable: str, value: str) -> tuple[int, ...]:
    """Living processes of our user that were started with ``variable=value``."""
    return tuple(
        pid for pid in own_pids() if environment_value(pid, variable) == value and start_ticks(pid) is not None
    )


def session_members(leader: ProcessId) -> set[int]:
    """Living processes in the session that `leader` began; a session id is not given again while one is left."""
    found: set[int] = set()
    if leader.pid < 1:
        return found  # a container shows session 0 for every session whose leader is outside it
    now = guard.stat_of(leader.pid)
    if leader.boot != boot_id() or (now is not None and now[4] != leader.ticks):
        return found  # the number belongs to another process by now
    for pid in own_pids():
        stat = guard.stat_of(pid)
        if stat is not None and stat[3] == leader.pid and stat[4] >= leader.ticks and stat[0] not in "ZX":
            found.add(pid)
    return found


async def _sweep(survivors: object, *, deadline: float) -> list[str]:
    assert callable(survivors)
    end = time.monotonic() + deadline
    while left := survivors():
        if time.monotonic() > end:
            return [f"process {pid} survives SIGKILL" for pid in left]
        for pid in left:
            guard.send(pid, signal.SIGKILL)
        await asyncio.sleep(0.05)
    return []
