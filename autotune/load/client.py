"""The driver's side of the load client: starts client processes, feeds them and collects what they measured."""

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
import time
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from typing import Self, cast
from urllib.parse import urlsplit

from autotune.errors import EnvironmentFault
from autotune.load import worker
from autotune.load.report import Target
from autotune.load.tls import client_context
from autotune.load.wire import MESSAGE, RESULTS, FrameReader, JsonValue, WireRequest, message, pack_requests

START_TIMEOUT = 30.0
"""Seconds for a client process to come up on a busy machine."""
REST = 0.0005
"""Seconds of rest before reads where most requests let their chunks gather: those of the others, which the server
writes one after the other, are then found together. With an eighth of 256 streams read chunk by chunk, 5.3 instead of
7.3 us a chunk; with all, nothing was gained. An open loop has requests to send on time, and in a simulated hour half a
millisecond is long."""
STOP_TIMEOUT = 60.0
"""Seconds for a client process to hand over its results."""

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


class _Process:
    """One client process and our end of its socket pair."""

    def __init__(self, context: multiprocessing.context.SpawnContext, number: int, cpus: tuple[int, ...] = ()) -> None:
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
        self.tick = Tick()
        self.first_tokens: list[float] = []
        self.events: asyncio.Queue[dict[str, JsonValue] | RawResult | None] = asyncio.Queue()
        self.writer: asyncio.StreamWriter | None = None
        self.reading: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        reader, self.writer = await asyncio.open_unix_connection(sock=self.socket)
        self.reading = asyncio.create_task(self._read(reader))
        await self.expect("hello", START_TIMEOUT)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        frames = FrameReader()
        try:
            while data := await reader.read(1 << 20):
                for kind, payload in frames.feed(data):
                    self._take(kind, payload)
        except ConnectionError:
            pass
        self.events.put_nowait(None)

    def _take(self, kind: int, payload: bytes) -> None:
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
        """The next answer of the process.

        Raises:
            EnvironmentFault: it died or did not answer in time.
        """
        try:
            async with asyncio.timeout(seconds):
                event = await self.events.get()
        except TimeoutError:
            raise EnvironmentFault(f"a load client process did not answer within {seconds:g} s ({what})") from None
        if event is None:
            code = self.process.exitcode
            raise EnvironmentFault(f"a load client process ended by itself (exit code {code})")
        return event

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


class LoadClient:
    """Client processes that stay up for a whole study: ``async with LoadClient(2) as client: ...``.

    A process needs about a quarter of a second to start, so keep them between trials. They end when this object is
    closed and also when the driver dies, whatever kills it.

    Args:
        processes: how many.
        cpus: processors that they are bound to; empty for all.
    """

    def __init__(self, processes: int = 1, *, cpus: tuple[int, ...] = ()) -> None:
        self.count = max(1, processes)
        self._cpus = cpus
        self._processes: list[_Process] = []
        self._spread = 0

    async def __aenter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        try:
            for number in range(self.count):
                self._processes.append(_Process(context, number, self._cpus))
            await asyncio.gather(*(item.connect() for item in self._processes))
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all client processes and wait for them."""
        processes, self._processes = self._processes, []
        await asyncio.gather(*(item.close() for item in processes))

    async def open(
        self, target: Target, *, slots: int, open_loop: bool, timeout: float, tick: float, gap_share: float = 1.0
    ) -> tuple[int, str]:
        """Open the connections of a level; `timeout` and `tick` are real seconds.

        Args:
            gap_share: share of the requests of which every chunk is read when it comes.

        Returns:
            The number of open connections, and why the rest could not be opened (empty when all are).
        """
        parts = urlsplit(target.url)
        tls = parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
        if tls:
            client_context(target.ca_file, target.insecure)  # a bad file is told here, not by a dead process
        for item in self._processes:
            while not item.events.empty():  # answers of a level that was cancelled
                item.events.get_nowait()
        self._spread = 0
        rest = REST if gap_share < 1 and not open_loop and target.time_scale == 1 else 0.0
        for number, item in enumerate(self._processes):
            share = slots // self.count + (number < slots % self.count)
            item.tick, item.first_tokens = Tick(), []
            item.tell(
                message(
                    {
                        "command": "open", "host": parts.hostname or "127.0.0.1", "port": port, "tls": tls,
                        "ca_file": target.ca_file, "insecure": target.insecure,
                        "slots": share, "open_loop": open_loop, "timeout": timeout, "tick": tick,
                        "gap_share": gap_share, "rest": rest,
                    }
                )
            )  # fmt: skip
        opened, reason = 0, ""
        for item in self._processes:
            answer = await item.expect("open", START_TIMEOUT + 20)
            while isinstance(answer, RawResult):
                answer = await item.expect("open", START_TIMEOUT)
            opened += int(cast(int, answer["connections"]))
            reason = reason or str(answer["failed"])
        return opened, reason

    def feed(self, requests: Sequence[WireRequest]) -> None:
        """Queue requests; conversations stay on one process, neighbours go to different ones."""
        shares: list[list[WireRequest]] = [[] for _ in self._processes]
        for item in requests:
            if not item.follows:
                self._spread += 1
            shares[(self._spread - 1) % self.count].append(item)
        for process, share in zip(self._processes, shares, strict=True):
            if share:
                process.tell(pack_requests(share))

    def go(self, delay: float = 0.05) -> float:
        """Start the load in all processes at the same instant; returns it (CLOCK_MONOTONIC seconds)."""
        start = time.monotonic() + delay
        for item in self._processes:
            item.tell(message({"command": "go", "start": start}))
        return start

    async def stop(self) -> list[RawResult]:
        """Stop the load, cancelling what runs, and collect the results of all processes."""
        for item in self._processes:
            item.tell(message({"command": "stop"}))
        results: list[RawResult] = []
        for item in self._processes:
            answer = await item.expect("results", STOP_TIMEOUT)
            while not isinstance(answer, RawResult):
                answer = await item.expect("results", STOP_TIMEOUT)
            results.append(answer)
        return results

    def cancel(self) -> None:
        """Stop the load at once without waiting for results (they are dropped by the next `open`)."""
        for item in self._processes:
            item.tell(message({"command": "stop"}))

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the clients."""
        return tuple(item.process.pid or 0 for item in self._processes)

    @property
    def ticks(self) -> list[Tick]:
        """The last report of every process."""
        return [item.tick for item in self._processes]

    def take_first_tokens(self) -> list[float]:
        """Times to first token (real seconds) since the last call."""
        found: list[float] = []
        for item in self._processes:
            found += item.first_tokens
            item.first_tokens = []
        return found

    @property
    def dead(self) -> bool:
        """A client process has ended by itself."""
        return any(not item.process.is_alive() for item in self._processes)
