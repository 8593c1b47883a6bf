"""The driver's ends of what makes the load: a client process, or a dispatcher on its own loop in virtual time."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import socket
import struct
import sys
import threading
import types
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from typing import cast

from autotune.errors import EnvironmentFault
from autotune.load import worker
from autotune.load.dispatch import Dispatcher
from autotune.load.surroundings import InVirtualTime
from autotune.load.wire import MESSAGE, RESULTS, FrameReader, JsonValue

START_TIMEOUT = 30.0
"""Seconds for a client process to come up on a busy machine."""

_main_lock = threading.Lock()


@dataclass(slots=True)
class Tick:
    """What one client process last reported; times are real seconds on CLOCK_MONOTONIC."""

    now: float = 0.0
    queue: int = 0
    inflight: int = 0
    sent: int = 0
    finished: int = 0
    failed: int = 0
    chunks: int = 0
    oldest: float = 0.0
    """Planned or real send time of the oldest request that runs; 0 when none does."""
    error: str = ""
    waits: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RawResult:
    """What one client process measured: a JSON header, and its binary rows (see `wire.RECORD_FIELDS`)."""

    header: dict[str, JsonValue]
    body: bytes


class ClientEnd(ABC):
    """Tells a client what to do and keeps what it tells."""

    def __init__(self) -> None:
        self.tick = Tick()
        self.first_tokens: list[float] = []
        self.events: asyncio.Queue[dict[str, JsonValue] | RawResult | None] = asyncio.Queue()

    @property
    def pid(self) -> int:
        """Its process; 0 for none."""
        return 0

    @property
    def exit_code(self) -> int | None:
        """Of its process, once that has ended."""
        return None

    @property
    def alive(self) -> bool:
        """It has not ended by itself."""
        return True

    @abstractmethod
    async def connect(self) -> None:
        """Wait until the client listens.

        Raises:
            EnvironmentFault: it does not come up.
        """

    @abstractmethod
    def tell(self, data: bytes) -> None:
        """Send a frame."""

    @abstractmethod
    async def close(self) -> None:
        """End the client and wait for it."""

    def take(self, kind: int, payload: bytes) -> None:
        """Keep a frame of the client's."""
        if kind == RESULTS:
            (size,) = struct.unpack_from("<I", payload)
            header = cast("dict[str, JsonValue]", json.loads(payload[4 : 4 + size]))
            self.events.put_nowait(RawResult(header, payload[4 + size :]))
        elif kind == MESSAGE:
            fields = cast("dict[str, JsonValue]", json.loads(payload))
            if fields.pop("event", None) == "tick":
                self.first_tokens += cast("list[float]", fields.pop("first_tokens"))
                self.tick = Tick(**fields)  # type: ignore[arg-type]
            else:
                self.events.put_nowait(fields)

    async def expect(self, what: str, seconds: float) -> dict[str, JsonValue] | RawResult:
        """The next answer of the client.

        Raises:
            EnvironmentFault: it died or did not answer in time.
        """
        try:
            async with asyncio.timeout(seconds):
                event = await self.events.get()
        except TimeoutError:
            raise EnvironmentFault(f"a load client process did not answer within {seconds:g} s ({what})") from None
        if event is None:
            raise EnvironmentFault(f"a load client process ended by itself (exit code {self.exit_code})")
        return event


class ProcessEnd(ClientEnd):
    """One client process and our end of its socket pair."""

    def __init__(self, context: multiprocessing.context.SpawnContext, number: int, cpus: tuple[int, ...] = ()) -> None:
        super().__init__()
        ours, theirs = context.Pipe(duplex=True)
        self.process = context.Process(
            target=worker.main, args=(theirs, cpus), name=f"autotune-load-{number}", daemon=True
        )
        # A spawned process imports the parent's main module again: for us that would be the whole command line, or
        # the user's unguarded script. It needs nothing from it, so it is shown an empty one.
        with _main_lock:
            main = sys.modules["__main__"]
            sys.modules["__main__"] = types.ModuleType("__main__")
            # A terminal's Ctrl-C reaches the whole group. We are told and end our processes; one that is still starting
            # would print a traceback. It inherits the mask.
            resource_tracker.ensure_running()  # it changes the mask when it starts
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                self.process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                sys.modules["__main__"] = main
        theirs.close()
        self.socket = socket.socket(fileno=os.dup(ours.fileno()))
        ours.close()
        self.socket.setblocking(False)
        self.writer: asyncio.StreamWriter | None = None
        self.reading: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        return self.process.pid or 0

    @property
    def exit_code(self) -> int | None:
        return self.process.exitcode

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    async def connect(self) -> None:
        reader, self.writer = await asyncio.open_unix_connection(sock=self.socket)
        self.reading = asyncio.create_task(self._read(reader))
        await self.expect("hello", START_TIMEOUT)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        frames = FrameReader()
        try:
            while data := await reader.read(1 << 20):
                for kind, payload in frames.feed(data):
                    self.take(kind, payload)
        except ConnectionError:
            pass
        self.events.put_nowait(None)

    def tell(self, data: bytes) -> None:
        if self.writer is not None and not self.writer.is_closing():
            self.writer.write(data)

    async def close(self) -> None:
        if self.reading is not None:
            self.reading.cancel()
        if self.writer is not None:
            self.writer.close()
        else:
            self.socket.close()
        # The process leaves as soon as the socket closes; kill it only if it does not.
        await asyncio.to_thread(self.process.join, 2.0)
        if self.process.is_alive():
            self.process.kill()
            await asyncio.to_thread(self.process.join, 5.0)
        self.process.close()


class InLoopEnd(ClientEnd):
    """A dispatcher on the running loop, which is virtual: the same frames, without a process or a socket between."""

    def __init__(self) -> None:
        super().__init__()
        self._told = FrameReader()
        self._answers = FrameReader()
        self._frames: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        self._serving: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        dispatcher = Dispatcher(loop, InVirtualTime(loop))
        dispatcher.control = self
        self._serving = asyncio.create_task(self._serve(dispatcher))

    async def _serve(self, dispatcher: Dispatcher) -> None:
        while True:
            await dispatcher.handle(*await self._frames.get())

    def write(self, data: bytes) -> None:
        """Take what the dispatcher tells."""
        for kind, payload in self._answers.feed(data):
            self.take(kind, payload)

    def tell(self, data: bytes) -> None:
        for item in self._told.feed(data):
            self._frames.put_nowait(item)

    async def close(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)
