"""The reader of plain sockets, on the tests' loop: times of arrival, ends of connections, writes that do not fit."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import struct
import time
from collections.abc import Callable

import pytest
import pytest_asyncio

from autotune.load import sockets
from autotune.load.sockets import SocketReader, SocketTransport


class Receiver:
    """Keeps what it is told, in order: (data, arrival, time of the call), and the error or None of the end."""

    def __init__(self) -> None:
        self.transport: SocketTransport | None = None
        self.reads: list[tuple[bytes, float, float]] = []
        self.lost: list[Exception | None] = []

    def connection_made(self, transport: SocketTransport) -> None:
        self.transport = transport

    def received(self, data: bytes, when: float) -> None:
        self.reads.append((data, when, time.perf_counter()))

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)

    @property
    def data(self) -> bytes:
        return b"".join(data for data, _, _ in self.reads)


class Pair:
    """A connection of the reader's and the server's blocking end of it."""

    def __init__(self, receiver: Receiver, server: socket.socket) -> None:
        self.receiver, self.server = receiver, server

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - the condition is about sockets, nothing sets an event
                await asyncio.sleep(0.001)


@pytest.fixture(scope="module", autouse=True)
def stamping():
    """The kernel stamps some time after the first socket of the host has asked for it, and while one does."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as one:
        one.setsockopt(socket.SOL_SOCKET, sockets.SO_TIMESTAMPNS, 1)
        server, _ = listener.accept()
        with server:
            for _ in range(1000):
                server.send(b"a")
                if one.recvmsg(1, socket.CMSG_SPACE(16))[1]:
                    break
                time.sleep(0.01)
            yield


@pytest_asyncio.fixture(loop_scope="session")
async def pair():
    reader = SocketReader(asyncio.get_running_loop())
    listener = socket.create_server(("127.0.0.1", 0))
    receiver = Receiver()
    await reader.connect([(socket.AF_INET, socket.SOCK_STREAM, 6, "", listener.getsockname())], receiver)
    server, _ = listener.accept()
    yield Pair(receiver, server)
    receiver.transport.abort()
    await asyncio.sleep(0)
    server.close()
    listener.close()


async def late(pair: Pair) -> tuple[float, float, float]:
    """(sent, stamped, read) of a byte that arrives while the loop is busy for 50 ms."""
    pair.server.send(b"a")
    await pair.until(lambda: len(pair.receiver.reads) == 1)
    sent = time.perf_counter()
    pair.server.send(b"b")
    time.sleep(0.05)  # noqa: ASYNC251 - the client is busy
    await pair.until(lambda: len(pair.receiver.reads) == 2)
    _, stamped, read = pair.receiver.reads[-1]
    return sent, stamped, read


async def test_a_late_read_has_the_time_of_arrival(pair):
    sent, stamped, read = await late(pair)
    assert sent <= stamped < sent + 0.02
    assert read > stamped + 0.02


@pytest.mark.parametrize("shift", [-3600.0, 3600.0])
async def test_a_clock_that_was_set_is_not_believed(pair, monkeypatch, shift):
    """The kernel stamped before the clock was set; then the time of the read is all that is known."""
    monkeypatch.setattr(sockets, "time", lambda: time.time() + shift)
    sent, stamped, read = await late(pair)
    assert sent + 0.05 <= stamped <= read


async def test_without_stamps_it_is_the_time_of_the_read(pair):
    pair.receiver.transport.sock.setsockopt(socket.SOL_SOCKET, sockets.SO_TIMESTAMPNS, 0)
    sent, stamped, read = await late(pair)
    assert sent + 0.05 <= stamped <= read


async def test_the_first_read_without_a_stamp_has_the_time_of_the_read(pair):
    pair.receiver.transport.sock.setsockopt(socket.SOL_SOCKET, sockets.SO_TIMESTAMPNS, 0)
    sent = time.perf_counter()
    pair.server.send(b"a")
    await pair.until(lambda: bool(pair.receiver.reads))
    ((_, stamped, read),) = pair.receiver.reads
    assert sent <= stamped <= read


async def test_an_interrupted_look_at_the_clocks_is_repeated(monkeypatch):
    """Reading two clocks with a pause in between would shift all times by half of it."""
    pauses = iter([0.05, 0.0, 0.0, 0.0])

    def interrupted() -> float:
        time.sleep(next(pauses))
        return time.time()

    monkeypatch.setattr(sockets, "time", interrupted)
    now, offset = sockets.clock_offset()
    assert abs(offset - (time.perf_counter() - time.time())) < 0.005
    assert now <= time.perf_counter()


async def test_data_and_close_in_one_event_are_both_seen(pair):
    """Edge-triggered: there is no second event."""
    pair.server.send(b"the end")
    pair.server.close()
    time.sleep(0.01)  # noqa: ASYNC251 - both are there before the reader looks
    await pair.until(lambda: bool(pair.receiver.lost))
    assert pair.receiver.data == b"the end"
    assert pair.receiver.lost == [None]


async def test_a_half_closed_connection_is_lost(pair):
    pair.server.shutdown(socket.SHUT_WR)
    await pair.until(lambda: bool(pair.receiver.lost))
    assert pair.server.recv(1) == b""


async def test_a_reset_is_told_with_its_error(pair):
    pair.server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    pair.server.close()
    await pair.until(lambda: bool(pair.receiver.lost))
    assert isinstance(pair.receiver.lost[0], ConnectionResetError)


async def test_more_than_the_buffer_comes_in_order(pair):
    sent = bytes(range(256)) * 2048
    assert len(sent) > 4 * sockets.BUFFER
    sending = asyncio.create_task(asyncio.to_thread(pair.server.sendall, sent))
    await pair.until(lambda: len(pair.receiver.data) == len(sent))
    await sending
    assert pair.receiver.data == sent


async def test_a_request_that_does_not_fit_goes_out_as_the_server_reads(pair):
    """A large body, and the next one behind it before the first is out."""
    transport = pair.receiver.transport
    transport.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32768)
    bodies = [bytes([number]) * 1_000_000 for number in (1, 2)]
    for body in bodies:
        transport.write(body)

    def read() -> str:
        found, size = hashlib.sha256(), 0
        while size < 2_000_000:
            data = pair.server.recv(1 << 16)
            found.update(data)
            size += len(data)
        return found.hexdigest()

    assert await asyncio.to_thread(read) == hashlib.sha256(b"".join(bodies)).hexdigest()


async def test_a_write_to_a_lost_connection_is_told(pair):
    pair.server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    pair.server.close()
    pair.receiver.transport.write(b"a")
    pair.receiver.transport.write(b"b")
    await pair.until(lambda: bool(pair.receiver.lost))
    assert isinstance(pair.receiver.lost[0], ConnectionError)
    assert len(pair.receiver.lost) == 1


async def test_the_next_address_is_tried_and_the_last_error_told():
    reader = SocketReader(asyncio.get_running_loop())
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_server(("127.0.0.1", 0)) as gone:
        nobody = (socket.AF_INET, socket.SOCK_STREAM, 6, "", gone.getsockname())
        gone.close()
        receiver = Receiver()
        somebody = (socket.AF_INET, socket.SOCK_STREAM, 6, "", listener.getsockname())
        await reader.connect([nobody, somebody], receiver)
        assert receiver.transport is not None
        assert receiver.transport.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        receiver.transport.abort()
        with pytest.raises(ConnectionRefusedError):
            await reader.connect([nobody], receiver)


async def test_bytes_below_the_mark_gather_and_have_the_time_of_the_last(pair):
    transport = pair.receiver.transport
    transport.hold_back(100)
    pair.server.send(b"a" * 60)
    await asyncio.sleep(0.15)
    assert pair.receiver.reads == []
    sent = time.perf_counter()
    pair.server.send(b"b" * 60)
    await pair.until(lambda: bool(pair.receiver.reads))
    ((data, stamped, _),) = pair.receiver.reads
    assert data == b"a" * 60 + b"b" * 60
    assert sent <= stamped < sent + 0.02


async def test_a_lower_mark_delivers_what_is_there_with_its_own_time(pair):
    """Older than the kernel's stamps of a connection that is read at once are believed to be."""
    transport = pair.receiver.transport
    transport.hold_back(100)
    sent = time.perf_counter()
    pair.server.send(b"a" * 60)
    await asyncio.sleep(sockets.DELIVERY + 0.05)
    transport.hold_back(1)
    await pair.until(lambda: bool(pair.receiver.reads))
    ((_, stamped, read),) = pair.receiver.reads
    assert sent <= stamped < sent + 0.02 < read


async def test_a_close_below_the_mark_is_told(pair):
    pair.receiver.transport.hold_back(1000)
    pair.server.send(b"the end")
    pair.server.close()
    await pair.until(lambda: bool(pair.receiver.lost))
    assert pair.receiver.data == b"the end"


async def test_the_urgent_are_read_first():
    reader = SocketReader(asyncio.get_running_loop())
    order: list[int] = []
    pairs = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for number in range(40):
            receiver = Receiver()
            await reader.connect([(socket.AF_INET, socket.SOCK_STREAM, 6, "", listener.getsockname())], receiver)
            receiver.transport.receive = lambda data, when, number=number: order.append(number)
            pairs.append((receiver, listener.accept()[0]))
        pairs[-1][0].transport.urgent = True
        for _, server in pairs:
            server.send(b"a")
        async with asyncio.timeout(10):
            while len(order) < len(pairs):  # noqa: ASYNC110 - nothing sets an event
                await asyncio.sleep(0.001)
        for receiver, server in pairs:
            receiver.transport.abort()
            server.close()
    assert order[0] == 39
    assert sorted(order) == list(range(40))
