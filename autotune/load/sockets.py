"""The plain sockets of a client process, all in one epoll, with the time at which the kernel got the bytes.

The times come from SO_TIMESTAMPNS, so a client that waits for its core, or that is busy with a thousand other streams,
reports the same latencies as an idle one.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import struct
from collections import deque
from collections.abc import Sequence
from time import perf_counter, sleep, time
from typing import Any, Protocol

BATCH = 256
"""Sockets read before the loop gets its turn: at 7 us each it waits for less than two milliseconds."""
BUFFER = 1 << 16
TURN = 1e-3
"""Seconds of reading before a look for urgent connections."""
SO_TIMESTAMPNS = 35
"""Linux's number on all but a few old architectures; Python has no name for it."""
_STAMP = struct.Struct("qq")
_ROOM = socket.CMSG_SPACE(_STAMP.size)
_NOTHING = memoryview(b"")
_READ = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
CLOCK_TRIES = 3
CLOCK_SPREAD = 2e-5
"""Seconds that reading two clocks takes at most when nothing interrupts."""
DELIVERY = 0.1
"""Seconds that bytes may wait in the kernel, stamped, until the socket has them; 15 ms were seen on a busy core. Time
daemons let a clock drift up to this and set it only where it is wrong by more."""


class Receiver(Protocol):
    """Who gets the bytes of a connection: an `asyncio.Protocol` that is told the time of arrival."""

    def connection_made(self, transport: Any) -> None: ...

    def received(self, data: bytes, when: float) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...


def clock_offset() -> tuple[float, float]:
    """(`perf_counter` now, what to add to CLOCK_REALTIME to get `perf_counter`), in seconds.

    The clocks are read in turn; when the process was interrupted in between they are read again.
    """
    for _ in range(CLOCK_TRIES):
        before = perf_counter()
        real = time()
        now = perf_counter()
        if now - before < CLOCK_SPREAD:
            break
    return now, (before + now) / 2 - real


class SocketTransport:
    """One connection, with those methods of an `asyncio.Transport` that its receiver needs."""

    __slots__ = ("_reader", "_receiver", "_unsent", "fileno", "gathered", "receive", "recvmsg_into", "sock", "urgent")

    def __init__(self, reader: SocketReader, sock: socket.socket, receiver: Receiver) -> None:
        self._reader, self._receiver, self.sock = reader, receiver, sock
        self.fileno = sock.fileno()
        self.recvmsg_into = sock.recvmsg_into
        self.receive = receiver.received
        self._unsent = _NOTHING
        self.gathered = False
        """Bytes were left to gather since the last write, so what is read may have come long ago."""
        self.urgent = False
        """It is read before the others: what comes next must be told from what follows it."""

    def write(self, data: bytes) -> None:
        """Send; what the socket does not take at once goes out as it drains."""
        self.gathered = False
        self._unsent = memoryview(bytes(self._unsent) + data) if self._unsent else memoryview(data)
        self.flush()

    def flush(self) -> None:
        """Send what is left."""
        try:
            self._unsent = self._unsent[self.sock.send(self._unsent) :] or _NOTHING
        except BlockingIOError:
            pass
        except OSError as error:
            self.close(error)
            return
        self._reader.watch_writes(self, bool(self._unsent))

    def hold_back(self, size: int) -> None:
        """Deliver nothing before `size` bytes are there, or the other end has closed; 1: every byte when it comes.

        Bytes that are there already are delivered when they are enough now. A kernel that does not know the option
        delivers everything when it comes.
        """
        if self.fileno >= 0:
            self.gathered = self.gathered or size > 1
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    def abort(self) -> None:
        """Close at once."""
        self.close()

    def close(self, error: Exception | None = None) -> None:
        """Close; the receiver is told from the loop. Closing twice does nothing."""
        if self.fileno < 0:
            return
        self._reader.forget(self)
        self.fileno = -1
        self.sock.close()
        self._reader.loop.call_soon(self._receiver.connection_lost, error)


class SocketReader:
    """Reads all plain sockets of a process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._epoll = select.epoll()
        self._open: dict[int, SocketTransport] = {}
        self._writing: set[int] = set()
        self._buffer = memoryview(bytearray(BUFFER))
        self._into = (self._buffer,)
        self._later: deque[tuple[SocketTransport, int]] = deque()
        self._called = False
        self._floor = perf_counter() - DELIVERY
        self.addresses: dict[tuple[str, int], Sequence[tuple[Any, ...]]] = {}
        """Of names that were looked up; whoever opens many connections clears it before."""
        self.rest = 0.0
        """Seconds that a round waits for more bytes. The loop stands still meanwhile, the times of arrival do not."""
        loop.add_reader(self._epoll.fileno(), self._round)

    async def connect_to(self, host: str, port: int, receiver: Receiver) -> None:
        """Open a connection; the name is looked up once.

        Raises:
            OSError: there is no such name, or nobody takes the connection.
        """
        if (host, port) not in self.addresses:
            self.addresses[host, port] = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        await self.connect(self.addresses[host, port], receiver)

    async def connect(self, addresses: Sequence[tuple[Any, ...]], receiver: Receiver) -> None:
        """Open a connection to the first of the addresses (as `getaddrinfo` gives them) that takes it.

        Raises:
            OSError: none does; the last one's error.
        """
        fault: OSError = OSError("no address")
        for family, kind, protocol, _, address in addresses:
            sock = socket.socket(family, kind, protocol)
            sock.setblocking(False)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await self.loop.sock_connect(sock, address)
            except OSError as error:
                sock.close()
                fault = error
                continue
            except BaseException:
                sock.close()
                raise
            with contextlib.suppress(OSError):  # a sandbox may not know it: then reads are stamped when they happen
                sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            transport = SocketTransport(self, sock, receiver)
            receiver.connection_made(transport)
            self._open[transport.fileno] = transport
            self._epoll.register(transport.fileno, _READ)
            return
        raise fault

    def forget(self, transport: SocketTransport) -> None:
        """A transport is about to close."""
        del self._open[transport.fileno]
        self._writing.discard(transport.fileno)
        self._epoll.unregister(transport.fileno)

    def watch_writes(self, transport: SocketTransport, wanted: bool) -> None:
        """Call `flush` when the socket takes more."""
        if wanted == (transport.fileno in self._writing):
            return
        (self._writing.add if wanted else self._writing.discard)(transport.fileno)
        self._epoll.modify(transport.fileno, _READ | (select.EPOLLOUT if wanted else 0))

    def read_all(self) -> None:
        """Read everything that has arrived, for a second at most: a server may write faster than that."""
        until = perf_counter() + 1.0
        while self._round() and perf_counter() < until:
            pass

    def _round(self) -> bool:
        """Read what has arrived, and say whether there may be more, which the loop is asked to go on with.

        The urgent come first, then the others for `TURN` seconds. Where a thousand answers end together their ends are
        a fifth of a second's work, in which the first tokens of the next requests would wait until the kernel has
        joined them with their successors, and a read has one time.
        """
        if self.rest and not self._later:
            sleep(self.rest)
        now, offset = clock_offset()
        events = self._epoll.poll(0, BATCH)
        find, later = self._open.get, self._later
        for fileno, mask in events:
            transport = find(fileno)
            if transport is None:
                continue  # closed by what another one received
            if transport.urgent:
                self._read(transport, mask, now, offset)
            else:
                later.append((transport, mask))
        until = now + TURN
        while later:
            transport, mask = later.popleft()
            if transport.fileno >= 0:
                self._read(transport, mask, now, offset)
            if perf_counter() > until:
                break
        if later or len(events) == BATCH:
            if not self._called:
                self._called = True
                self.loop.call_soon(self._go_on)
            return True
        self._floor = now - DELIVERY
        return False

    def _go_on(self) -> None:
        self._called = False
        self._round()

    def _read(self, transport: SocketTransport, mask: int, now: float, offset: float) -> None:
        """Read a connection; `now` is the begin of the round, `offset` turns the kernel's clock into ours."""
        if mask & select.EPOLLOUT:
            transport.flush()
        buffer = self._buffer
        while True:
            try:
                size, control, _, _ = transport.recvmsg_into(self._into, _ROOM)
            except BlockingIOError:
                return
            except OSError as error:
                transport.close(error)
                return
            if not size:
                transport.close()
                return
            when = 0.0
            if control:
                seconds, nanoseconds = _STAMP.unpack(control[0][2])
                when = seconds + nanoseconds * 1e-9 + offset
            if not self._floor <= when <= now:
                # It came during this round; or there is no stamp, or the clock was set: what the socket had before
                # the last round was read then. The time of the read must do.
                late = perf_counter()
                when = when if now < when < late or (transport.gathered and 0.0 < when <= now) else late
            transport.receive(buffer[:size].tobytes(), when)
            # Edge-triggered: what comes from now on, even a close, is a new event.
            if mask == select.EPOLLIN and size < BUFFER:
                return
