"""GPUs that the trials of one study share: each holds what its layout takes, and what is left serves other trials."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from autotune.host.gpus import Gpu
from autotune.host.topology import nearest

Unit: TypeAlias = int
"""A GPU: its NVML index, or a number where GPUs are simulated."""


class GpuPool:
    """Hands out GPUs, first come, first served: a trial that needs many is not overtaken for ever by small ones.

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
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()

    async def take(self, place: int, count: int) -> tuple[Unit, ...]:
        """GPUs for a trial at `place`; waits until there are so many. Its engine stays up where their number stays."""
        async with self._turn:
            if len(self._held.get(place, ())) != min(count, self._size):
                await self._let_go(place)
                while len(self._free) < min(count, self._size):
                    self._changed.clear()
                    idle = next((one for one in self._held if one not in self._busy), None)
                    if idle is not None:
                        await self._let_go(idle)
                    else:
                        await self._changed.wait()
                self._held[place] = self._choose(min(count, self._size))
            self._busy.add(place)
            return self._held[place]

    async def room(self) -> None:
        """Wait until a GPU is free, or held by an engine without a trial, and nobody waits for more."""
        async with self._turn:
            while not self._free and self._held.keys() <= self._busy:
                self._changed.clear()
                await self._changed.wait()

    def done(self, place: int) -> None:
        """The trial at `place` has ended; its engine may run on until somebody needs the GPUs."""
        self._busy.discard(place)
        self._changed.set()

    async def _let_go(self, place: int) -> None:
        if place in self._held:
            await self._end(place)
            self._free = sorted([*self._free, *self._held.pop(place)])

    def _choose(self, count: int) -> tuple[Unit, ...]:
        cards = [self._cards[unit] for unit in self._free if unit in self._cards]
        chosen = tuple(card.index for card in nearest(cards, count)) or tuple(self._free[:count])
        self._free = [unit for unit in self._free if unit not in chosen]
        return chosen
