"""When requests are sent. Arrivals are drawn from a seed of their own: all trials of a study see the same times."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count, repeat
from typing import Literal

import numpy as np

from autotune.load.records import Floats

BLOCK = 512
Kind = Literal["constant", "poisson", "gamma"]


def gaps(kind: Kind, rate: float, burstiness: float, generator: np.random.Generator, number: int) -> Floats:
    """`number` times between arrivals in seconds at a mean of `rate` a second.

    `poisson` is exponential; `gamma` has shape `burstiness` (1 is Poisson, below 1 burstier; CV = burstiness^-1/2).
    Nothing is rescaled afterwards: forcing N arrivals into exactly N/rate seconds would take out the very variance
    that an open loop is for.
    """
    if kind == "constant":
        return np.full(number, 1.0 / rate)
    if kind == "poisson":
        return generator.exponential(1.0 / rate, number)
    return generator.gamma(burstiness, 1.0 / (rate * burstiness), number)


def burst_times(rate: float, size: int) -> Iterator[float]:
    """Endless arrival times of bursts: `size` requests at once, at even intervals that make up the rate."""
    for number in count(1):
        yield from repeat(number * size / rate, size)


def ramp_times(rate: float, period: float, swing: float, seed: list[int]) -> Iterator[float]:
    """Endless Poisson arrivals whose rate rises evenly from (1 - swing) to (1 + swing) times `rate` in half a period,
    and falls back in the other: arrivals at rate 1 whose clock is set by the expected number of arrivals."""
    generator = np.random.default_rng(seed)
    whole, expected = rate * period, 0.0
    steepness, lowest = 2.0 * swing * rate / period, rate * (1.0 - swing)

    def after(arrivals: float) -> float:
        """Seconds of the rising half until so many arrivals are expected."""
        root = math.sqrt(lowest * lowest + 4.0 * steepness * arrivals)
        return 2.0 * arrivals / (lowest + root) if arrivals > 0 else 0.0

    while True:
        for gap in generator.exponential(1.0, BLOCK):
            expected += float(gap)
            periods, rest = divmod(expected, whole)
            inside = after(rest) if rest <= whole / 2 else period - after(whole - rest)
            yield periods * period + inside


def arrival_times(kind: Kind, rate: float, burstiness: float, seed: list[int]) -> Iterator[float]:
    """Endless arrival times in seconds, the first gap included."""
    generator = np.random.default_rng(seed)
    now = 0.0
    while True:
        for gap in gaps(kind, rate, burstiness, generator, BLOCK):
            now += float(gap)
            yield now
