"""When requests are sent. Arrivals are drawn from a seed of their own: all trials of a study see the same times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from autotune.load.records import Floats

BLOCK = 512
Kind = Literal["constant", "poisson", "gamma"]


def gaps(kind: Kind, rate: float, burstiness: float, generator: np.random.Generator, count: int) -> Floats:
    """`count` times between arrivals in seconds at a mean of `rate` a second.

    `poisson` is exponential; `gamma` has shape `burstiness` (1 is Poisson, below 1 burstier; CV = burstiness^-1/2).
    Nothing is rescaled afterwards: forcing N arrivals into exactly N/rate seconds would take out the very variance
    that an open loop is for.
    """
    if kind == "constant":
        return np.full(count, 1.0 / rate)
    if kind == "poisson":
        return generator.exponential(1.0 / rate, count)
    return generator.gamma(burstiness, 1.0 / (rate * burstiness), count)


def arrival_times(kind: Kind, rate: float, burstiness: float, seed: list[int]) -> Iterator[float]:
    """Endless arrival times in seconds, the first gap included."""
    generator = np.random.default_rng(seed)
    now = 0.0
    while True:
        for gap in gaps(kind, rate, burstiness, generator, BLOCK):
            now += float(gap)
            yield now
