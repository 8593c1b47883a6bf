"""One server process: bind, start, serve until a signal or the engine's death. Exit codes are vLLM's."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from .arguments import ArgumentError, Flags, parse
from .children import leak_process, start_engine_process, stop_engine_process
from .faults import SimulationEnvironment
from .logs import ProcessLog
from .startup import StartFailed, Startup
from .tables import table


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``serve MODEL [options]``; returns the exit code: 0 after a stop or the engine's death, 1 failed, 2 usage."""
    if not argv or argv[0] != "serve":
        print("usage: python -m autotune.simulator serve MODEL [vllm serve options]", file=sys.stderr)
        return 2
    try:
        process = ServerProcess(*understand(argv, environ), environ)
    except (ArgumentError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    import uvloop  # after the arguments are known to be right, to fail fast

    return uvloop.run(process.run())


def understand(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[Flags, SimulationEnvironment]:
    """Read ``serve MODEL [options]`` and the variables.

    :raises ArgumentError: an option that vLLM does not know.
    :raises ValueError: a variable that is wrong.
    """
    flags = parse(argv[1:])
    environment = SimulationEnvironment.from_environment(environ)
    if environment.card not in ("h100", "h200", "a100", "l4"):
        raise ValueError(f"AUTOTUNE_SIM_CARD: unknown card {environment.card!r}; known are h100, h200, a100, l4")
    return flags, environment


class ServerProcess:
    """The API server's process, or a task on somebody's loop that behaves like it.

    :param out: where a task writes its log; a process writes it to stdout and stderr.
    :param time_of_day: seconds since 1970, for the log's stamps.
    """

    def __init__(
        self,
        flags: Flags,
        environment: SimulationEnvironment,
        environ: Mapping[str, str],
        out: TextIO | None = None,
        time_of_day: Callable[[], float] = time.time,
    ) -> None:
        self.flags = flags
        self.environment = environment
        self.environ = environ
        self.pid = os.getpid() if out is None else 1
        self.api = ProcessLog("APIServer", self.pid, out, time_of_day)
        self.engine_log = ProcessLog("EngineCore", self.pid, out, time_of_day)
        self.stop = asyncio.Event()
        self.child: asyncio.subprocess.Process | None = None
        self._own_process = out is None

    async def run(self) -> int:
        """Start and serve."""
        if self._own_process:
            self._signals()
        try:
            listener = self._bind()
        except OSError as error:
            self.api.raw("Traceback (most recent call last):")
            self.api.raw(f"OSError: {error}")
            return 1
        with listener:
            try:
                return await self._start_and_serve(listener)
            finally:
                if self.child is not None:
                    await stop_engine_process(self.child)

    async def _start_and_serve(self, listener: socket.socket) -> int:
        if self.environment.fault("leak_process"):
            leak_process()
        if self.environment.processes:
            self.child = await start_engine_process()
            self.engine_log = ProcessLog("EngineCore", self.child.pid)
        start = Startup(self.flags, self.environment, self.environ, self.api, self.engine_log)
        starting = asyncio.ensure_future(start.run())
        ends: list[asyncio.Future[Any]] = [asyncio.ensure_future(self.stop.wait())]
        if self.child is not None:
            ends.append(asyncio.ensure_future(self.child.wait()))
        await asyncio.wait({starting, *ends}, return_when=asyncio.FIRST_COMPLETED)
        stopped = self.stop.is_set()
        for end in ends:
            end.cancel()
        if not starting.done():
            starting.cancel()
            if not stopped:
                start.engine_gone()
            return 0 if stopped else 1
        try:
            settings, memory = starting.result()
        except StartFailed:
            return 1
        from .session import serve  # aiohttp is imported while nobody waits for an error text

        return await serve(self, listener, settings, memory)

    def _signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            if number == signal.SIGTERM and self.environment.fault("ignore_sigterm"):
                signal.signal(number, signal.SIG_IGN)
            else:
                loop.add_signal_handler(number, self.stop.set)

    def _bind(self) -> socket.socket:
        """Take the port before the engine starts, as vLLM does; nobody can connect until it listens."""
        host = str(self.flags.get("host") or "0.0.0.0")
        port = self.flags.get("port")
        number = port if isinstance(port, int) else 8000
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
        except OSError as error:
            listener.close()
            raise OSError(
                f"[Errno 98] error while attempting to bind on address ('{host}', {number}): address already in use"
            ) from error
        return listener

    def routes(self) -> None:
        """Log what vLLM logs before it accepts requests."""
        host, port = self.flags.get("host") or "0.0.0.0", self.flags.get("port") or 8000
        self.api.info("api_server.py:673", "Supported tasks: ['generate']")
        self.api.info("api_server.py:677", f"Starting vLLM server on http://{host}:{port} (simulated)")
        self.api.info("launcher.py:37", "Available routes are:")
        for route, methods in table("server")["routes"].items():
            self.api.info("launcher.py:46", f"Route: {route}, Methods: {methods}")
        self.api.web(f"Started server process [{self.pid}]")
        self.api.web("Waiting for application startup.")
        self.api.web("Application startup complete.")
