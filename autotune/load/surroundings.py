"""What a dispatcher works in: a process of its own with the host's clock and sockets, or a loop in virtual time."""

from __future__ import annotations

import asyncio
import gc
from time import perf_counter, process_time
from typing import Protocol

from autotune.load.sockets import SocketReader
from autotune.load.stream import Stream


class Surroundings(Protocol):
    """Clock and connections of a dispatcher.

    Attributes:
        early: seconds by which the loop's timers may be early.
    """

    early: float

    def clock(self) -> float:
        """Seconds on CLOCK_MONOTONIC, or of virtual time."""

    def cpu(self) -> float:
        """Seconds of computing so far that may have made the client late."""

    def prepare(self, rest: float) -> None:
        """A level begins; `rest` seconds before every round of reads."""

    def settle(self, running: bool) -> None:
        """The load begins or ends: what could disturb it may not, or may again."""

    async def connect(self, host: str, port: int, stream: Stream) -> None:
        """Open a plain connection.

        Raises:
            OSError: nobody takes it.
        """

    def read_all(self) -> None:
        """Read everything that has arrived."""


class OwnProcess:
    """A process that does nothing else. The loop's timers have steps of a millisecond."""

    early = 0.001

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sockets = SocketReader(loop)
        self.clock = perf_counter
        self.cpu = process_time
        self.connect = self._sockets.connect_to
        self.read_all = self._sockets.read_all

    def prepare(self, rest: float) -> None:
        """See `Surroundings.prepare`. Names are looked up once a level."""
        self._sockets.addresses.clear()
        self._sockets.rest = rest

    def settle(self, running: bool) -> None:
        """See `Surroundings.settle`. The collector would stop all streams at once."""
        if running:
            gc.collect()
            gc.freeze()
            gc.disable()
        else:
            gc.enable()
            gc.unfreeze()


class InVirtualTime:
    """The tuner's own virtual loop, which the simulated server shares. No time passes while the client computes."""

    early = 0.0

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.clock = loop.time

    def cpu(self) -> float:
        """See `Surroundings.cpu`."""
        return 0.0

    def prepare(self, rest: float) -> None:
        """Nothing is to be prepared."""

    def settle(self, running: bool) -> None:
        """Nothing disturbs."""

    async def connect(self, host: str, port: int, stream: Stream) -> None:
        """See `Surroundings.connect`."""
        await self._loop.create_connection(lambda: stream, host, port)

    def read_all(self) -> None:
        """What arrives is taken at once."""
