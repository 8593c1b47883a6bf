"""One connection of the load client: sends prepared bytes and takes the time of every chunk that comes back.

This is the data plane. After the first token nothing is parsed: chunks are counted and their arrival is noted. JSON is
read only up to the first token and for the last few chunks (usage, finish, errors).
"""

from __future__ import annotations

import asyncio
import math
from array import array
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Protocol, cast

import httptools

from autotune.load.events import error_in, only_tokens, payload_of, read_object, refusal_in, tokens_in
from autotune.load.sockets import SocketTransport
from autotune.load.wire import FAILED, OK, UNFINISHED, WireRequest

NAN = float("nan")
TAIL_READS = 4
"""Reads kept for the end of a stream: last token, finish reason, usage and [DONE] may come one by one."""
MAX_ERROR_BODY = 2000
CODING_BYTES = 6
"""What the transfer coding adds to a chunk of two hundred bytes: its length in hexadecimal and two line ends."""
EVENT_END = b"\n\n\r\n"
"""End of an event that ends a chunk of the transfer coding, too. No event holds it: JSON escapes line feeds."""
AHEAD = 16
"""Chunks of a request whose gaps are not wanted that may gather before they are read. One read a chunk is what a client
spends its time on."""
FULL = 0.97
"""Share of the usual size of so many chunks that makes them due: texts differ in length."""
OVERDUE = 2.0
"""Chunks that need this many times as long as their forerunners are read as they are."""

Record = tuple[float, ...]


class Owner(Protocol):
    """Who gets told what became of a request."""

    @property
    def chunks_per_token(self) -> float: ...

    def on_first_token(self, stream: Stream) -> None: ...

    def on_done(self, stream: Stream, status: float, error: str) -> None: ...

    def on_lost(self, stream: Stream) -> None: ...


class Stream(asyncio.Protocol):
    """A connection with at most one request on it."""

    __slots__ = (
        "_answered", "_carry", "_chunk_bytes", "_done_seen", "_error", "_fast", "_feed", "_finished", "_gathers",
        "_log_append", "_separator", "_streaming", "_tail", "_tail_append", "_wanted", "_whole", "attempts", "choice",
        "chunk_log", "clock", "closing", "due", "end", "first", "followers", "last", "now", "overdue", "owner",
        "parser", "request", "sent", "status_code", "transport", "usage", "used", "visible",
    )  # fmt: skip

    def __init__(self, owner: Owner, clock: Callable[[], float] = perf_counter) -> None:
        self.owner = owner
        self.clock = clock
        self.transport: asyncio.Transport | SocketTransport | None = None
        self.request: WireRequest | None = None
        self.followers: list[WireRequest] = []
        self.used = False
        self.attempts = 0
        self.due = NAN
        self.closing = False
        self._wanted = 1
        self._clear()

    def _clear(self) -> None:
        self.sent = self.first = self.visible = self.choice = self.last = self.end = NAN
        self.now = 0.0
        self.status_code = 0
        self.chunk_log = array("d")
        self.usage: tuple[float, float, float] = (NAN, NAN, NAN)
        self._fast = False
        self._streaming = False
        self._finished = False
        self._answered = False
        self._carry = b""
        self._separator = b"\n\n"
        self._error = ""
        self._done_seen = False
        self._tail: deque[bytes] = deque(maxlen=TAIL_READS)
        self._tail_append = self._tail.append
        self._log_append = self.chunk_log.append
        self._gathers = self._whole = False
        self._chunk_bytes = 0.0
        self.overdue = math.inf

    # -- connection ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport | SocketTransport) -> None:
        self.transport = cast("asyncio.Transport | SocketTransport", transport)
        self.parser = httptools.HttpResponseParser(self)
        self._feed: Callable[[bytes], None] = self.parser.feed_data

    def connection_lost(self, exc: Exception | None) -> None:
        self.now = self.clock()
        self.transport = None
        if self.request is not None and not self.closing:
            if self._done_seen or (self._tail and b"[DONE]" in self._tail[-1]):
                self._complete()  # a body without a length ends with the connection
            elif self._answered or not self.used or self.attempts >= 2:
                where = f"after {len(self.chunk_log)} chunks" if self._answered else "before an answer"
                self._fail(f"connection closed {where}")
        self.owner.on_lost(self)

    @property
    def pending(self) -> WireRequest | None:
        """The request that still waits for its end.

        After a loss of the connection it is one that met a keep-alive connection which the server was just closing:
        not the request's fault, so it is sent once more.
        """
        return None if self._finished else self.request

    def send(self, request: WireRequest, due: float, see_gaps: bool = True) -> None:
        """Put a request on the idle connection.

        Args:
            due: the time it should have been sent (NaN: now).
            see_gaps: read every chunk when it comes; else, where the connection can, several at a time.
        """
        if self.request is not request:
            self.attempts = 0
        self._clear()
        self.request = request
        self.due = due
        self.attempts += 1
        transport = self.transport
        if transport is None:
            self._fail("connection is closed")
            return
        if isinstance(transport, SocketTransport):
            self._gathers = not see_gaps
            if self._wanted != 1:
                self._want(1)
            transport.urgent = True
        self.sent = self.clock()
        transport.write(request.data)

    def fail(self, reason: str) -> None:
        """Give the running request up as failed (time-out) and close the connection."""
        self.now = self.clock()
        self._fail(reason)
        self.abort()

    def abort(self) -> None:
        """Close at once; the server sees a cancelled request."""
        self.closing = True
        if self.transport is not None:
            self.transport.abort()

    # -- receiving ----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self.received(data, self.clock())

    def received(self, data: bytes, when: float) -> None:
        """Take bytes of which the last arrived at `when` (seconds on its clock)."""
        if self._whole and data.endswith(EVENT_END) and only_tokens(data):
            self.now = max(when, self.chunk_log[-1])
            self.chunk_log.extend([self.now] * data.count(EVENT_END))
            self._gather()
            return
        self.now = when
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            if self.request is not None:
                self._answered = True
                self._fail(f"answer is not HTTP: {error}")
            self.abort()
            return
        if self._gathers and self._fast:
            self._gather()
            # The parser stands between two chunks then, and needs not see what begins and ends with whole ones.
            self._whole = self._wanted > 1 and self._separator == b"\n\n" and data.endswith(EVENT_END)
        else:
            self._whole = False

    def _gather(self) -> None:
        """Let chunks gather: so many fewer than are to come that the end is seen when it comes, short texts or not."""
        assert self.request is not None
        seen = len(self.chunk_log)
        if not self._chunk_bytes:
            last = self._tail[-1]
            self._chunk_bytes = FULL * (len(last) + CODING_BYTES) / max(1, last.count(self._separator))
        left = int(self.request.output_tokens * self.owner.chunks_per_token) - seen
        ahead = min(AHEAD, left * 3 // 4)
        self._want(int(ahead * self._chunk_bytes) if ahead > 1 else 1)
        if ahead > 1:
            self.overdue = self.now + OVERDUE * ahead * (self.now - self.first) / seen
        else:
            self.overdue = math.inf

    def hurry(self) -> None:
        """Read what has gathered: it is overdue, or the load ends."""
        self.overdue = math.inf
        self._want(1)

    def _want(self, size: int) -> None:
        if size != self._wanted and isinstance(self.transport, SocketTransport):
            self._wanted = size
            self.transport.hold_back(size)

    def on_headers_complete(self) -> None:
        self._answered = True
        self.now = max(self.now, self.sent)  # whatever became of the kernel's clock, no answer precedes its request
        self.status_code = self.parser.get_status_code()
        self._streaming = self.status_code == 200

    def on_body(self, body: bytes) -> None:
        if self._fast and body.find(b"\n") == len(body) - 2 and body[-1] == 10 and body[0] == 100:
            # One event of one line, told by its only line feeds being the two at its end: searching for one byte costs
            # a quarter of counting separators.
            self._log_append(self.now)
            self._tail_append(body)
        elif self._fast and body[0] == 100 and body.endswith(self._separator):
            self.chunk_log.extend([self.now] * body.count(self._separator))
            self._tail_append(body)
        elif self.request is None:
            return
        elif self._streaming:
            self._read_events(body)
        elif len(self._carry) < MAX_ERROR_BODY:
            self._carry += body

    def _read_events(self, body: bytes) -> None:
        data = self._carry + body if self._carry else body
        if not self.chunk_log and self._separator == b"\n\n" and b"\r\n\r\n" in data:
            self._separator = b"\r\n\r\n"
        separator = self._separator
        cut = data.rfind(separator)
        if cut < 0:
            self._carry, self._fast = data, False
            return
        cut += len(separator)
        self._carry = data[cut:]
        for event in data[:cut].split(separator):
            payload = payload_of(event.strip(b"\r\n")) if event else None
            if payload is None:
                continue
            if self.first == self.first:  # the first token has been seen (not NaN)
                self.chunk_log.append(self.now)
                self._tail.append(event + separator)
                if self.visible != self.visible and b'"content"' in payload:
                    self._look_for_visible(payload)
            else:
                self._before_first_token(event, payload)
        # A carried rest must go through here again, and so must reasoning until visible text appears.
        self._fast = not self._carry and self.visible == self.visible

    def _before_first_token(self, event: bytes, payload: bytes) -> None:
        if payload == b"[DONE]":
            self._done_seen = True
            return
        chunk = read_object(payload)
        if chunk is None:
            self._error = self._error or "a chunk is not JSON"
            return
        self._error = error_in(chunk) or self._error
        self._take_usage(chunk)
        has_choices, any_token, visible = tokens_in(chunk)
        if has_choices:
            if self.choice != self.choice:
                self.choice = self.now
            self.last = self.now
        if any_token:
            self.first = self.now
            if visible:
                self.visible = self.now
            self.chunk_log.append(self.now)
            if isinstance(self.transport, SocketTransport):
                self.transport.urgent = False
            self._tail.append(event + self._separator)
            self.owner.on_first_token(self)

    def _look_for_visible(self, payload: bytes) -> None:
        chunk = read_object(payload)
        if chunk is not None and tokens_in(chunk)[2]:
            self.visible = self.now

    def _take_usage(self, chunk: dict[str, object]) -> None:
        usage = chunk.get("usage")
        if not isinstance(usage, dict):
            return
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
        self.usage = (
            float(prompt) if isinstance(prompt, int) else NAN,
            float(completion) if isinstance(completion, int) else NAN,
            float(cached) if isinstance(cached, int) else NAN,
        )

    # -- the end ------------------------------------------------------------------------------------------------

    def on_message_complete(self) -> None:
        if self.request is None or self._finished:
            return
        keep = self.parser.should_keep_alive()
        if not keep:
            self.closing = True
        self._complete()
        if not keep and self.transport is not None:
            self.transport.close()

    def _complete(self) -> None:
        if self.status_code != 200:
            text = self._carry[:MAX_ERROR_BODY].decode("utf-8", "replace").strip()
            self._fail(f"HTTP {self.status_code}: {refusal_in(text)[:300]}")
            return
        self._read_tail()
        if self._error:
            self._fail(f"error in mid-stream: {self._error[:300]}")
        elif self.choice != self.choice:
            self._fail("no completion chunks in the answer (does the server stream?)")
        else:
            self._report(OK, "")

    def _read_tail(self) -> None:
        """Take usage and errors from the last chunks and drop those that carry no choice from the log of tokens."""
        events = [part for read in self._tail for part in read.split(self._separator) if part.strip()]
        trailing, found = 0, False
        for event in reversed(events):
            payload = payload_of(event.strip(b"\r\n"))
            if payload is None or payload == b"[DONE]":
                self._done_seen = self._done_seen or payload is not None
                trailing += not found
                continue
            chunk = read_object(payload)
            if chunk is None:
                self._error = self._error or "a chunk is not JSON"
                continue
            self._error = error_in(chunk) or self._error
            if self.usage[1] != self.usage[1]:
                self._take_usage(chunk)
            if not found:
                found = tokens_in(chunk)[0]
                trailing += not found
        if trailing:
            del self.chunk_log[max(1, len(self.chunk_log) - trailing) :]
        if self.chunk_log:
            self.last = self.chunk_log[-1]

    def _fail(self, reason: str) -> None:
        self._report(FAILED, reason)

    def _report(self, status: float, error: str) -> None:
        if self._finished or self.request is None:
            return
        self._finished = True
        self._fast = False
        self.end = self.now or self.clock()
        self.owner.on_done(self, status, error)

    def record(self, status: float, error: float) -> Record:
        """The request as a row of `wire.RECORD_FIELDS`."""
        assert self.request is not None
        prompt, completion, cached = self.usage
        last = self.chunk_log[-1] if status == UNFINISHED and self.chunk_log else self.last
        return (
            float(self.request.index), self.due, self.sent, self.first, self.visible, self.choice, last, self.end,
            float(self.request.output_tokens), prompt, completion, cached,
            float(len(self.chunk_log)), status, error, float(self.attempts), float(not self._gathers),
        )  # fmt: skip
