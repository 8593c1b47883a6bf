"""A simulated server as a task on the running loop instead of a process: the same start, routes, log lines and end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .arguments import ArgumentError
from .serve import ServerProcess, understand

KILLED = -9
"""Exit code of a server that did not end by itself."""


class ServerTask:
    """One server, which begins at once.

    :param argv: ``serve MODEL [options]``.
    :param environ: its variables.
    :param log: file that its output is appended to.
    :param time_of_day: seconds since 1970, for the log's stamps.
    """

    def __init__(
        self, argv: Sequence[str], environ: Mapping[str, str], log: Path, time_of_day: Callable[[], float]
    ) -> None:
        self._time_of_day = time_of_day
        self.exit_code: int | None = None
        self._process: ServerProcess | None = None
        self._task = asyncio.create_task(self._run(tuple(argv), dict(environ), log))

    async def _run(self, argv: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
        code = KILLED
        with log.open("a", encoding="utf-8") as out:
            try:
                flags, environment = understand(argv, environ)
                if environment.processes or environment.fault("leak_process"):
                    raise ValueError("AUTOTUNE_SIM_PROCS and the fault leak_process need a server that is a process")
                self._process = ServerProcess(flags, environment, environ, out, self._time_of_day)
                code = await self._process.run()
            except (ArgumentError, ValueError) as error:
                out.write(f"{error}\n")
                code = 2
            finally:
                self.exit_code = code

    async def wait(self) -> None:
        """Wait until it has ended."""
        await asyncio.wait({self._task})

    async def end(self, grace: float) -> bool:
        """Ask it to end, as SIGTERM does, and end it after ``grace`` seconds. Returns whether that was needed."""
        process = self._process
        if process is not None and not process.environment.fault("ignore_sigterm"):
            process.stop.set()
        await asyncio.wait({self._task}, timeout=grace)
        killed = not self._task.done()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        return killed
