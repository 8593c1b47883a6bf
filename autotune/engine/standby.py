"""Fast starts: an interpreter that has already imported vLLM waits while the present trial is measured.

It is a supervised job like any engine, so nothing of it can be left behind. It takes no GPU and no port until it is
given a command line; then the same process becomes `vllm serve`, with the environment and the arguments that a plain
start would have had.
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
PER_START = frozenset(
    {"VLLM_API_KEY", "AUTOTUNE_LIVE_LIMITS", "CUDA_VISIBLE_DEVICES", "PYTHONPATH", "VLLM_RPC_BASE_PATH"}
)
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
        self.used = False
        """The latest start took the waiting interpreter."""

    @property
    def waiting(self) -> bool:
        return self._waiting is not None

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
        argv = (python, str(SCRIPT), f"{SCRATCH}/standby")
        job = await launch(argv, env, folder=folder, log=log, grace=self._grace, cpus=command.cpus)
        self._waiting = _Waiting(job, env, job.scratch / "standby")

    async def take(self, command: Command, *, folder: Path, log: Path) -> SupervisedJob | None:
        """The waiting interpreter, turned into `command`; None where there is none that may be used."""
        waiting, self._waiting = self._waiting, None
        self.used = False
        if waiting is None:
            return None
        if (
            self._usable
            and waiting.env == _lasting(command.env)
            and await self._hand_over(waiting, command, folder, log)
        ):
            self.used = True
            return waiting.job
        await waiting.job.stop(0.0)
        return None

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
        order = {"argv": words, "env": waiting.job.environment(command.env), "cwd": str(folder.resolve())}
        order["log"] = str(log.resolve())
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
