"""A loop whose clock jumps, connections in memory, and work on such a loop beside one in real time."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable

import pytest

from autotune.virtualtime import VirtualLoop, in_virtual_time, now, time_of_day

HOUR = 3600.0


def run(work: Callable[[], Awaitable[object]], began_at: float = 0.0) -> object:
    async def awaited() -> object:
        return await work()

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(began_at)) as runner:
        return runner.run(awaited())


def test_waits_cost_nothing_and_end_in_order() -> None:
    heard: list[tuple[str, float]] = []

    async def wait(name: str, seconds: float) -> None:
        began = now()
        await asyncio.sleep(seconds)
        heard.append((name, round(now() - began, 3)))

    async def work() -> None:
        await asyncio.gather(wait("day", 24 * HOUR), wait("hour", HOUR), wait("none", 0), wait("second", 1))

    real = time.monotonic()
    run(work)
    assert heard == [("none", 0.0), ("second", 1.0), ("hour", HOUR), ("day", 24 * HOUR)]
    assert time.monotonic() - real < 5


def test_computing_takes_no_time_and_threads_are_not_waited_for() -> None:
    async def work() -> None:
        began = now()
        assert await asyncio.to_thread(lambda: time.sleep(0.05) or 7) == 7
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 / 0)
        assert now() - began < 1e-5

    run(work)


def test_whoever_asks_the_clock_again_and_again_sees_it_go_on() -> None:
    async def work() -> None:
        until = now() + 1e-6
        while now() < until:  # noqa: ASYNC110 - that is the point
            await asyncio.sleep(0)

    run(work)


def test_the_time_of_day_goes_with_the_clock() -> None:
    async def work() -> float:
        await asyncio.sleep(HOUR)
        return time_of_day()

    assert run(work, 1000.0) == pytest.approx(1000 + HOUR, abs=1e-3)
    assert abs(time_of_day() - time.time()) < 5
    assert abs(now() - time.monotonic()) < 5


class Echo(asyncio.Protocol):
    def __init__(self, heard: list[bytes]) -> None:
        self.heard = heard

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard.append(data)
        if data == b"bye":
            self.transport.write(b"farewell")
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.heard.append(b"lost")


def test_what_is_written_arrives_in_order_also_where_the_reader_pauses() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        theirs: list[bytes] = []
        ours: list[bytes] = []
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            port = bound.getsockname()[1]
            server = await loop.create_server(lambda: Echo(theirs), sock=bound)
            transport, _ = await loop.create_connection(lambda: Echo(ours), "127.0.0.1", port)
            transport.pause_reading()
            for word in (b"one", b"two", b"bye"):
                transport.write(word)
            await asyncio.sleep(1)
            assert (theirs, ours) == ([b"one", b"two", b"bye", b"lost"], [])
            transport.resume_reading()
            await asyncio.sleep(0)
            assert ours == [b"farewell", b"lost"] and transport.is_closing()
            server.close()
            with pytest.raises(ConnectionRefusedError):
                await loop.create_connection(lambda: Echo(ours), "127.0.0.1", port)

    run(work)


async def test_work_in_virtual_time_returns_and_raises() -> None:
    async def good() -> float:
        await asyncio.sleep(HOUR)
        return now()

    async def bad() -> None:
        raise ValueError("no")

    assert await in_virtual_time(good) > HOUR
    with pytest.raises(ValueError, match="no"):
        await in_virtual_time(bad)


@pytest.mark.parametrize("busy", [True, False])
async def test_interrupted_it_ends_its_work_first(busy: bool) -> None:
    began, ended = asyncio.Event(), []
    outside = asyncio.get_running_loop()

    async def endless() -> None:
        outside.call_soon_threadsafe(began.set)
        try:
            while busy:  # noqa: ASYNC110 - a loop with timers
                await asyncio.sleep(1)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(HOUR)
            ended.append(now())

    task = asyncio.create_task(in_virtual_time(endless))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(ended) == 1
