"""GPUs that the trials of one study share: each holds what its layout takes, and what is left serves other trials."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from autotune.host.gpus import Gpu
from autotune.host.topology import nearest

Unit: TypeAlias = int
"""A GPU: its NVML index, or a number where GPUs are simulated."""
OVERTAKEN = 2
"""So many smaller trials may begin before one that waits: enough to use most of what is free, and no trial starves."""
WAITING = 2
"""Trials that may wait at a time: each was chosen without the outcomes that came while it waited."""


@dataclass(eq=False)
class _Waiting:
    """A trial that wants GPUs, and how many that came later went before it."""

    count: int
    overtaken: int = 0


class GpuPool:
    """Hands out GPUs, first come, first served; a few smaller trials may go before one that waits for many.

    A place keeps its GPUs after its trial, because its engine may take a live change; who needs them ends it.

    Args:
        units: all GPUs of the study.
        cards: the same as NVML sees them, for groups that reach each other best; empty where nobody looked.
        end: ends the idle engines of a place.
    """

    def __init__(self, units: Sequence[Unit], cards: Sequence[Gpu], end: Callable[[int], Awaitable[None]]) -> None:
        self._free = sorted(units)
        self._size = len(units)
        self._cards = {card.index: card for card in cards}
        self._end = end
        self._held: dict[int, tuple[Unit, ...]] = {}
        self._busy: set[int] = set()
        self._queue: list[_Waiting] = []
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()

    async def take(self, place: int, count: int) -> tuple[Unit, ...]:
        """GPUs for a trial at `place`; waits until there are so many. Its engine stays up where their number stays."""
        mine = _Waiting(min(count, self._size))
        self._queue.append(mine)
        try:
            while True:
                changed = self._changed
                async with self._turn:
                    if self._may_go(mine):
                        return await self._claim(place, mine.count)
                await changed.wait()
        finally:
            self._queue.remove(mine)
            self._tell()

    async def room(self) -> None:
        """Wait until there is a GPU for one more trial that may begin before those that wait, or wait with them."""
        while True:
            changed = self._changed
            async with self._turn:
                if len(self._queue) < WAITING and self._available and not any(map(_last, self._queue)):
                    return
            await changed.wait()

    def done(self, place: int) -> None:
        """The trial at `place` has ended; its engine may run on until somebody needs the GPUs."""
        self._busy.discard(place)
        self._tell()

    @property
    def _available(self) -> int:
        """GPUs without a trial: free ones, and those of engines that only wait for a live change."""
        return len(self._free) + sum(len(held) for place, held in self._held.items() if place not in self._busy)

    def _may_go(self, mine: _Waiting) -> bool:
        """Whether it is the turn of a trial: those before it cannot begin now, and may still be overtaken."""
        available = self._available
        before = self._queue[: self._queue.index(mine)]
        if mine.count > available or any(one.count <= available or _last(one) for one in before):
            return False
        for one in before:
            one.overtaken += 1
        return True

    async def _claim(self, place: int, count: int) -> tuple[Unit, ...]:
        """Take GPUs of which there are enough; engines that are in the way end."""
        if len(self._held.get(place, ())) != count:
            await self._let_go(place)
            while len(self._free) < count:
                await self._let_go(next(one for one in self._held if one not in self._busy))
            self._held[place] = self._choose(count)
        self._busy.add(place)
        return self._held[place]

    async def _let_go(self, place: int) -> None:
        if place in self._held:
            await self._end(place)
            self._free = sorted([*self._free, *self._held.pop(place)])

    def _choose(self, count: int) -> tuple[Unit, ...]:
        cards = [self._cards[unit] for unit in self._free if unit in self._cards]
        chosen = tuple(card.index for card in nearest(cards, count)) or tuple(self._free[:count])
        self._free = [unit for unit in self._free if unit not in chosen]
        return chosen

    def _tell(self) -> None:
        """Let everybody who waits look again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _last(one: _Waiting) -> bool:
    """Nobody may overtake a trial any more."""
    return one.overtaken >= OVERTAKEN
