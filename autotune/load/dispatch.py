"""Who sends what when: the slots of a closed loop, the schedule of an open one, and the books of a client process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections import deque
from dataclasses import dataclass
from typing import Protocol, cast

from autotune.load.books import Books
from autotune.load.stream import NAN, Stream
from autotune.load.surroundings import OwnProcess, Surroundings
from autotune.load.tls import client_context, reason_of
from autotune.load.wire import (
    MESSAGE,
    OK,
    REQUESTS,
    RESULTS,
    UNFINISHED,
    JsonValue,
    WireRequest,
    frame,
    message,
    unpack_requests,
)

BEAT = 0.01
"""Seconds between two heartbeats of the loop; their delay is the loop lag."""
OVERDUE_BEATS = 5
"""Heartbeats between two looks for overdue chunks."""
RETRY_DELAY = 0.1
"""Seconds that a slot rests after an error, so that a failing server is not flooded."""
_SCATTER = (5**0.5 - 1) / 2
"""Multiples of it, whole parts left out, fall evenly into [0, 1), in whatever order requests of a kind come."""
SPARE_CONNECTIONS = 8
"""Open-loop connections kept ready beyond those in use."""


@dataclass(frozen=True, slots=True)
class Setup:
    """How to reach the server and how to load it."""

    host: str
    port: int
    tls: bool
    ca_file: str
    insecure: bool
    slots: int
    open_loop: bool
    timeout: float
    tick: float
    gap_share: float
    """Of the requests, those of which every chunk is read when it comes."""
    rest: float
    """Seconds before every round of reads."""


class Control(Protocol):
    """The way to the driver."""

    def write(self, data: bytes, /) -> object: ...


class Dispatcher:
    """All connections of one client process, or of a client in virtual time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, surroundings: Surroundings | None = None) -> None:
        self.loop = loop
        self.around = surroundings or OwnProcess(loop)
        self.clock = self.around.clock
        self.control: Control | None = None
        self.setup = Setup("127.0.0.1", 0, False, "", False, 1, False, 300.0, 0.1, 1.0, 0.0)
        self.context: ssl.SSLContext | None = None
        self._reset()

    def _reset(self) -> None:
        self.queue: deque[tuple[WireRequest, list[WireRequest]]] = deque()
        self.idle: list[Stream] = []
        self.busy: dict[Stream, None] = {}
        self.opening = 0
        self.running = self.started = self.ending = False
        self.start = 0.0
        self.books = Books()
        self.timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self.beat_due = 0.0
        self.tick_due = 0.0
        self.waiting_slots = 0
        self.cpu = 0.0

    # -- control ------------------------------------------------------------------------------------------------

    def tell(self, data: bytes) -> None:
        """Write a frame to the driver."""
        if self.control is not None:
            self.control.write(data)

    async def handle(self, kind: int, payload: bytes) -> None:
        """Do what one frame asks."""
        if kind == REQUESTS:
            self.take(unpack_requests(payload))
            return
        fields = cast("dict[str, JsonValue]", json.loads(payload)) if kind == MESSAGE else {}
        command = fields.pop("command", "")
        if command == "open":
            await self.open(Setup(**fields))  # type: ignore[arg-type]
        elif command == "go":
            self.go(float(cast(float, fields["start"])))
        elif command == "stop":
            self.tell(frame(RESULTS, self.stop()))
        elif command == "quit":
            self.loop.stop()

    def take(self, requests: list[WireRequest]) -> None:
        """Add requests to the queue; turns of a conversation stay together."""
        for item in requests:
            if item.follows and self.queue:
                self.queue[-1][1].append(item)
            else:
                self.queue.append((item, []))
        if self.running:
            self.feed()

    async def open(self, setup: Setup) -> None:
        """Open the connections of a level before its load begins."""
        self._reset()
        self.setup = setup
        self.context = client_context(setup.ca_file, setup.insecure) if setup.tls else None
        self.around.prepare(setup.rest)
        failed = ""
        for first in range(0, setup.slots, 64):
            wave = min(64, setup.slots - first)
            results = await asyncio.gather(*(self._connect() for _ in range(wave)), return_exceptions=True)
            faults = [item for item in results if isinstance(item, BaseException)]
            self.idle += [item for item in results if isinstance(item, Stream)]
            if faults:
                failed = reason_of(faults[0])
                break
        self.tell(message({"event": "open", "connections": len(self.idle), "failed": failed}))

    async def _connect(self) -> Stream:
        stream = Stream(self, self.clock)
        async with asyncio.timeout(10):
            if self.context is not None:
                # uvloop's transport decrypts, so these reads are stamped when they happen.
                host, port = self.setup.host, self.setup.port
                await self.loop.create_connection(lambda: stream, host, port, ssl=self.context, server_hostname=host)
                return stream
            await self.around.connect(self.setup.host, self.setup.port, stream)
        return stream

    def go(self, start: float) -> None:
        """Begin: time zero of the plan is `start` on CLOCK_MONOTONIC."""
        self.running = True
        self.start = start
        self.around.settle(running=True)
        self.cpu = self.around.cpu()
        now = self.clock()
        self.beat_due = now + BEAT
        self.tick_due = now + self.setup.tick
        self.loop.call_later(BEAT, self._beat)
        self.waiting_slots = 0 if self.setup.open_loop else len(self.idle)
        self.loop.call_later(max(0.0, start - now), self._begin)

    def _begin(self) -> None:
        # The loop's timers may be early.
        if self.clock() < self.start:
            self.loop.call_soon(self._begin)
            return
        self.started = True
        self.feed()

    def stop(self) -> bytes:
        """End the load: cancel what runs and return everything measured."""
        self.running = False
        cpu = self.around.cpu() - self.cpu
        for stream in self.busy:
            stream.hurry()
        self.ending = True
        self.around.read_all()
        now = self.clock()
        if self.timer is not None:
            self.timer.cancel()
        for stream in list(self.busy):
            if stream.pending is not None:
                stream.end = now
                self.books.keep(stream, UNFINISHED, "")
            stream.abort()
        for stream in self.idle:
            stream.abort()
        # Planned but never sent although their time had come: the client or the server could not take them.
        overdue = 0
        if self.setup.open_loop:
            overdue = sum(1 for item, _ in self.queue if self.start + item.due < now)
        results = self.books.close({"start": self.start, "stopped": now, "cpu": cpu, "overdue": overdue})
        self._reset()
        self.around.settle(running=False)
        return results

    # -- load ---------------------------------------------------------------------------------------------------

    def feed(self) -> None:
        """Send what may be sent now."""
        if not self.running or not self.started:
            return
        if self.setup.open_loop:
            self._feed_schedule()
            return
        while self.waiting_slots and self.queue and self.idle:
            self.waiting_slots -= 1
            first, followers = self.queue.popleft()
            self._send(self.idle.pop(), first, followers, NAN)

    def _feed_schedule(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        early = self.around.early
        while self.queue:
            due = self.start + self.queue[0][0].due
            wait = due - self.clock()
            if wait > 0:
                # Sleep short of it, then go round the loop.
                self.timer = (
                    self.loop.call_later(wait - early, self._feed_schedule)
                    if wait > early
                    else self.loop.call_soon(self._feed_schedule)
                )
                return
            first, followers = self.queue.popleft()
            if self.idle:
                self._send(self.idle.pop(), first, followers, due)
            else:
                self._send_on_new(first, followers, due)
            if len(self.idle) + self.opening < SPARE_CONNECTIONS:
                self._open_spare()

    def _send(self, stream: Stream, request: WireRequest, followers: list[WireRequest], due: float) -> None:
        self.busy[stream] = None
        self.books.counts["sent"] += 1
        stream.followers = followers
        stream.send(request, due, (request.index + 1) * _SCATTER % 1.0 < self.setup.gap_share)

    def _spawn(self, work: asyncio.Task[None]) -> None:
        self.opening += 1
        work.add_done_callback(self._spawned)

    def _spawned(self, work: asyncio.Task[None]) -> None:
        self.opening -= 1

    def _open_spare(self) -> None:
        async def connect() -> None:
            while self.running:
                with contextlib.suppress(OSError, TimeoutError):
                    stream = await self._connect()
                    self.idle.append(stream)
                    self.feed()
                    return
                await asyncio.sleep(RETRY_DELAY)

        self._spawn(self.loop.create_task(connect()))

    def _send_on_new(self, request: WireRequest, followers: list[WireRequest], due: float, attempts: int = 0) -> None:
        async def connect() -> None:
            try:
                stream = await self._connect()
            except (OSError, TimeoutError) as error:
                stream = Stream(self, self.clock)
                stream.request, stream.due, stream.sent = request, due, self.clock()
                self.busy[stream] = None
                self.books.counts["sent"] += 1
                stream.fail(f"cannot connect: {reason_of(error)}")
                return
            if not self.running:
                stream.abort()
                return
            stream.request, stream.attempts = (request if attempts else None), attempts
            self._send(stream, request, followers, due)

        self._spawn(self.loop.create_task(connect()))

    # -- what streams report ------------------------------------------------------------------------------------

    @property
    def chunks_per_token(self) -> float:
        """The lowest of any answer so far."""
        return self.books.chunks_per_token

    def on_first_token(self, stream: Stream) -> None:
        self.books.first_tokens.append(stream.first - (stream.due if stream.due == stream.due else stream.sent))

    def on_done(self, stream: Stream, status: float, error: str) -> None:
        if not self.running and not self.ending:
            return
        request = stream.request
        self.books.keep(stream, status, error)
        self.busy.pop(stream, None)
        if self.ending:
            stream.abort()
            return
        stream.used = True
        stream.request = None
        followers, stream.followers = stream.followers, []
        alive = stream.transport is not None and not stream.closing
        if status == OK:
            if followers and alive:
                due = stream.end if self.setup.open_loop else NAN
                self._send(stream, followers[0], followers[1:], due)
                return
            self._release(stream, alive)
        else:
            if alive:
                stream.abort()
            if not self.setup.open_loop:
                self.loop.call_later(RETRY_DELAY, self._release, stream, False)
        assert request is not None

    def _release(self, stream: Stream, alive: bool) -> None:
        """A slot is free; use it again, with a new connection where the old one is gone."""
        if not self.running:
            return
        if self.setup.open_loop:
            if alive:
                self.idle.append(stream)
            return
        if not self.queue:
            self.books.counts["starved"] += 1
        if alive and self.queue:
            first, followers = self.queue.popleft()
            self._send(stream, first, followers, NAN)
        elif alive:
            self.idle.append(stream)
            self.waiting_slots += 1
        elif self.queue:
            first, followers = self.queue.popleft()
            self._send_on_new(first, followers, NAN)
        else:
            self.waiting_slots += 1
            self._open_spare()

    def on_lost(self, stream: Stream) -> None:
        if stream in self.idle:
            self.idle.remove(stream)
            if self.running and not self.setup.open_loop:
                self._open_spare()
        request = stream.pending
        if request is not None and self.running and not stream.closing and stream in self.busy:
            self.busy.pop(stream)
            self.books.counts["retried"] += 1
            self.books.counts["sent"] -= 1
            self._send_on_new(request, stream.followers, stream.due, stream.attempts)

    # -- time ---------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        if not self.running:
            return
        now = self.clock()
        self.books.lags.append(now - self.beat_due)
        if len(self.books.lags) % OVERDUE_BEATS == 0:
            for stream in self.busy:
                if stream.overdue < now:
                    stream.hurry()
        if now >= self.tick_due:
            self.tick_due = now + self.setup.tick
            self._tick(now)
        self.beat_due = now + BEAT
        self.loop.call_later(BEAT, self._beat)

    def _tick(self, now: float) -> None:
        waits: list[JsonValue] = []
        tokens = self.books.counts["tokens"]
        late: list[Stream] = []
        oldest = 0.0
        for stream in self.busy:
            tokens += len(stream.chunk_log)
            reference = stream.due if stream.due == stream.due else stream.sent
            oldest = min(oldest or reference, reference)
            if now - stream.sent > self.setup.timeout:
                late.append(stream)
            elif stream.first != stream.first:
                waits.append(now - reference)
        for stream in late:
            stream.fail(f"no end within {self.setup.timeout:g} s")
        self.tell(
            message(
                {
                    "event": "tick", "now": now, "queue": len(self.queue), "inflight": len(self.busy),
                    "first_tokens": list(self.books.first_tokens), "waits": waits, "chunks": tokens, "oldest": oldest,
                    "error": next(iter(self.books.errors), ""),
                    **{name: self.books.counts[name] for name in ("sent", "finished", "failed")},
                }
            )
        )  # fmt: skip
        self.books.first_tokens.clear()
