"""Fast starts: an interpreter that has already imported vLLM waits while the present trial is measured.

It is a supervised job like any engine, so nothing of it can be left behind. It takes no GPU and no port until it is
given a command line; then the same process becomes `vllm serve`, with the environment and the arguments that a plain
start would have had.

Where nobody waits yet, a start makes one and waits for it, which costs what importing costs anyway. So all fast starts
are alike, and all of them can use what earlier ones compiled: see `_hidden_key`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.engine.recipe import Command
from autotune.engine.supervised import SCRATCH, SupervisedJob, launch

SCRIPT = Path(__file__).parent / "plugin" / "autotune_standby.py"
PREPARE_SECONDS = 240.0
"""Longest time that importing may take before a plain start is made instead."""
KEY = "VLLM_API_KEY"
SEVERAL_SERVERS = ("--api-server-count", "--data-parallel-size")
"""Arguments with which vLLM starts API servers as processes of their own, which need the key in their environment."""
PER_START = frozenset({KEY, "AUTOTUNE_LIVE_LIMITS", "CUDA_VISIBLE_DEVICES", "PYTHONPATH", "VLLM_RPC_BASE_PATH"})
"""Variables that are read after the start. Any other difference could have been read while importing."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    job: SupervisedJob
    env: Mapping[str, str]
    socket: Path


class Standby:
    """Keeps at most one waiting interpreter for one engine.

    Args:
        grace: seconds between SIGTERM and SIGKILL when it is ended.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._waiting: _Waiting | None = None
        self._usable = True
        self._inspected = False
        self.used = False
        """The latest start took the waiting interpreter."""

    @property
    def usable(self) -> bool:
        """False once it was given up."""
        return self._usable

    async def wait_ready(self) -> None:
        """Wait until it has imported everything, or has ended because it must not be used."""
        waiting = self._waiting
        if waiting is not None:
            await self._imported(waiting)

    async def prepare(self, command: Command, folder: Path) -> None:
        """Begin to import for a later start like `command`. Does nothing where one waits already."""
        if self._waiting is not None or not self._usable:
            return
        python, env = command.argv[0], _lasting(command.env)
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / "standby.log"
        log.write_bytes(b"")
        # The architecture is looked at (and that is cached) only before anything is measured: it could touch the GPU.
        model = () if self._inspected else (command.argv[command.argv.index("serve") + 1],)
        self._inspected = True
        argv = (python, str(SCRIPT), f"{SCRATCH}/standby", *model)
        # vLLM itself may lie on PYTHONPATH; what a start adds to it comes with the order.
        path = {"PYTHONPATH": command.env["PYTHONPATH"]} if "PYTHONPATH" in command.env else {}
        job = await launch(argv, env | path, folder=folder, log=log, grace=self._grace, cpus=command.cpus)
        self._waiting = _Waiting(job, env, job.scratch / "standby")

    async def take(self, command: Command, *, folder: Path, log: Path) -> SupervisedJob | None:
        """The waiting interpreter, turned into `command`; None where none may be used."""
        self.used = False
        if self._waiting is not None and self._waiting.env != _lasting(command.env):
            await self.close()
        await self.prepare(command, folder.parent)
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return None
        try:
            self.used = await self._hand_over(waiting, command, folder, log)
        finally:
            if not self.used:
                await asyncio.shield(waiting.job.stop(0.0))
        return waiting.job if self.used else None

    def give_up(self) -> None:
        """Never again in this study: a fast start did not come up where a plain one might."""
        self._usable = False

    async def close(self) -> None:
        """End the waiting interpreter."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            await waiting.job.stop(0.0)

    async def _hand_over(self, waiting: _Waiting, command: Command, folder: Path, log: Path) -> bool:
        if not await self._imported(waiting):
            return False
        words = ["vllm", *command.argv[command.argv.index("serve") :]]
        env, key = _hidden_key(command)
        order = {"argv": words, "env": waiting.job.environment(env), "cwd": str(folder.resolve())}
        order |= {"log": str(log.resolve()), "key": key}
        with contextlib.suppress(OSError, TimeoutError):
            await waiting.job.follow_log(log.resolve())
            reader, writer = await asyncio.open_unix_connection(str(waiting.socket))
            writer.write(json.dumps(order).encode() + b"\n")
            await writer.drain()
            async with asyncio.timeout(10):
                answer = await reader.readline()
            writer.close()
            return answer == b"ready\n"
        return False

    async def _imported(self, waiting: _Waiting) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PREPARE_SECONDS
        while not waiting.socket.exists():
            if waiting.job.ended or loop.time() > deadline:
                return False
            await asyncio.sleep(0.1)
        return True


def _lasting(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in PER_START}


def _hidden_key(command: Command) -> tuple[dict[str, str], str]:
    """The environment without the key, and the key, for a server that is one process.

    vLLM up to 0.31 counts VLLM_API_KEY among what its compile cache depends on, and writes it there
    (`envs.compile_factors`, `cache_key_factors.json`). A key that only the API server knows keeps the cache common to
    all starts, and the key off the disk.
    """
    env = dict(command.env)
    if any(word.startswith(SEVERAL_SERVERS) for word in command.argv):
        return env, ""
    return env, env.pop(KEY, "")
