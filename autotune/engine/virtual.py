"""Simulated engines in virtual time: the server is a task on the tuner's loop, and chance follows from the study."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

from autotune.engine.recipe import Command
from autotune.engine.supervised import Ended
from autotune.simulator.task import ServerTask
from autotune.virtualtime import now, time_of_day

SEED = "AUTOTUNE_SIM_SEED"


class VirtualJob:
    """See `Job`. There is no process, so there is none to lose, to orphan or to find on the port."""

    refused: str | None = None
    known_processes: tuple[int, ...] = ()

    def __init__(self, command: Command, log: Path, seed: int) -> None:
        at = command.argv.index("serve")
        self._server = ServerTask(command.argv[at:], {SEED: str(seed), **command.env}, log, time_of_day)

    @property
    def exit_code(self) -> int | None:
        return self._server.exit_code

    @property
    def ended(self) -> bool:
        return self._server.exit_code is not None

    def processes(self) -> tuple[int, ...]:
        return ()

    async def wait_over(self) -> None:
        await self._server.wait()

    async def stop(self, grace: float) -> Ended:
        """See `Job.stop`."""
        began = now()
        killed = await self._server.end(grace)
        return Ended(now() - began, killed, ())


class VirtualLauncher:
    """Starts the simulated engines of a study.

    Args:
        seed: of the study. The noise of a start follows from it, from the trial and from how many starts that had.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._starts: Counter[str] = Counter()

    def __call__(self, command: Command, log: Path) -> VirtualJob:
        trial = log.parent.name
        self._starts[trial] += 1
        digest = hashlib.sha256(f"{self._seed}/{trial}/{self._starts[trial]}".encode()).digest()
        return VirtualJob(command, log, int.from_bytes(digest[:4], "big") // 2)
