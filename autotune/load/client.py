"""The driver's side of the load client: starts what makes the load, feeds it and collects what it measured."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Sequence
from typing import Self, cast
from urllib.parse import urlsplit

from autotune.load.ends import START_TIMEOUT, ClientEnd, InLoopEnd, ProcessEnd, RawResult, Tick
from autotune.load.report import Target
from autotune.load.tls import client_context
from autotune.load.wire import WireRequest, message, pack_requests
from autotune.virtualtime import now

REST = 0.0005
"""Seconds of rest before reads where most requests let their chunks gather: those of the others, which the server
writes one after the other, are then found together. With an eighth of 256 streams read chunk by chunk, 5.3 instead of
7.3 us a chunk; with all, nothing was gained. An open loop has requests to send on time, and in a simulated hour half a
millisecond is long."""
STOP_TIMEOUT = 60.0
"""Seconds for a client process to hand over its results."""


class LoadClient:
    """Client processes that stay up for a whole study: ``async with LoadClient(2) as client: ...``.

    A process needs about a quarter of a second to start, so keep them between trials. They end when this object is
    closed and also when the driver dies, whatever kills it.

    Args:
        processes: how many.
        cpus: processors that they are bound to; empty for all.
        virtual: make the load on the running loop, which is a `VirtualLoop`: one client, which is never late.
    """

    def __init__(self, processes: int = 1, *, cpus: tuple[int, ...] = (), virtual: bool = False) -> None:
        self.count = 1 if virtual else max(1, processes)
        self._cpus = cpus
        self._virtual = virtual
        self._processes: list[ClientEnd] = []
        self._spread = 0

    async def __aenter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        try:
            for number in range(self.count):
                self._processes.append(InLoopEnd() if self._virtual else ProcessEnd(context, number, self._cpus))
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
        start = now() + delay
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
        return tuple(item.pid for item in self._processes)

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
        return not all(item.alive for item in self._processes)
