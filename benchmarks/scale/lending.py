"""How busy GPUs are that trials of several sizes share: the real pool, asked as the loop asks, on a virtual clock."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from autotune.host.pool import GpuPool
from benchmarks.scale.clock import run_virtually
from benchmarks.scale.world import MEASURE_S, START_S

GPUS = 8
LIVE = 0.3
"""Share of trials that only change a running engine."""
LIVE_S = 2.0
LAYOUTS = ((1, 2, 4), (1, 2, 4, 8), (2, 4, 8), (4, 8))


@dataclass
class _Study:
    """Proposals of random sizes, one after the other, each to be run as soon as its GPUs are free."""

    sizes: Sequence[int]
    left: int
    rng: random.Random
    pool: GpuPool = field(init=False)
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    charged: float = 0.0
    waits: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.pool = GpuPool(range(GPUS), (), _end)

    async def work(self, place: int) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            async with self.asking:
                await self.pool.room()
                if self.left == 0:
                    return
                self.left -= 1
                size, live = self.rng.choice(self.sizes), self.rng.random() < LIVE
            seconds = ((LIVE_S if live else START_S) + MEASURE_S) * self.rng.uniform(0.9, 1.1)
            asked = clock()
            await self.pool.take(place, size)
            self.waits[size].append(clock() - asked)
            await asyncio.sleep(seconds)
            self.charged += size * seconds
            self.pool.done(place)


async def _end(place: int) -> None:
    """Ending an engine takes no time here."""


async def _run(study: _Study) -> None:
    await asyncio.gather(*(study.work(place) for place in range(GPUS)))


def table(trials: int, seeds: int) -> str:
    """One row for each set of layouts; means over the seeds."""
    head = (
        "| GPUs of a layout | trials | GPUs busy | hours | a trial waits for its GPUs, mean by size |\n"
        "|---|---|---|---|---|"
    )
    return "\n".join([head, *(_row(sizes, trials, seeds) for sizes in LAYOUTS)])


def _row(sizes: Sequence[int], trials: int, seeds: int) -> str:
    busy, hours, waits = [], [], defaultdict[int, list[float]](list)
    for seed in range(seeds):
        study = _Study(sizes, trials, random.Random(seed))
        _, seconds, _ = run_virtually(_run(study))
        busy.append(study.charged / (GPUS * seconds))
        hours.append(seconds / 3600)
        for size, found in study.waits.items():
            waits[size] += found
    waited = ", ".join(f"{size}: {statistics.mean(waits[size]):.0f} s" for size in sizes)
    names = ", ".join(map(str, sizes))
    return f"| {names} | {trials} | {statistics.mean(busy):.0%} | {statistics.mean(hours):.2f} | {waited} |"
