"""Intervals by resampling blocks of time: neighbours in time are alike, so single samples must not be resampled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.load.records import Floats, Ints
from autotune.load.report import Estimate

REPLICATES = 1000
MAX_BINS = 2000
"""Percentiles of more samples than this are resampled on so many bins of equal count."""


class Blocks:
    """A window cut into equal blocks, and the same resampled block sets for every metric (seeded, so repeatable).

    Args:
        start: begin of the window in seconds.
        end: its end.
        count: number of blocks.
    """

    def __init__(self, start: float, end: float, count: int) -> None:
        self.start, self.end, self.count = start, end, max(2, count)
        self.length = (end - start) / self.count
        picks = np.random.default_rng(20).integers(0, self.count, (REPLICATES, self.count))
        self.multiplicity = np.apply_along_axis(np.bincount, 1, picks, minlength=self.count).astype(np.float64)

    def number(self, times: Floats) -> Ints:
        """The block of each time."""
        return np.clip(((times - self.start) / self.length).astype(np.int64), 0, self.count - 1)

    def _sums(self, values: Floats, times: Floats) -> Floats:
        return np.bincount(self.number(times), weights=values, minlength=self.count).astype(np.float64)

    def rate(self, times: Floats, weights: Floats) -> Estimate:
        """Sum of weights a second."""
        sums = self._sums(weights, times)
        spread = self.multiplicity @ sums / (self.count * self.length)
        return _estimate(float(sums.sum()) / (self.count * self.length), spread, len(times))

    def ratio(self, above: Floats, below: Floats, times: Floats) -> Estimate:
        """Sum of `above` over sum of `below`."""
        top, bottom = self._sums(above, times), self._sums(below, times)
        with np.errstate(invalid="ignore", divide="ignore"):
            spread = (self.multiplicity @ top) / (self.multiplicity @ bottom)
        return _estimate(float(top.sum() / bottom.sum()) if bottom.sum() else 0.0, spread, len(times))

    def mean(self, values: Floats, times: Floats) -> Estimate:
        """Mean of the values."""
        estimate = self.ratio(values, np.ones(len(values)), times)
        return Estimate(float(values.mean()), estimate.low, estimate.high, len(values))

    def percentiles(self, values: Floats, times: Floats, wanted: Sequence[float]) -> list[Estimate]:
        """Percentiles (linear between ranks) with intervals."""
        if not wanted:
            return []
        order = np.argsort(values, kind="stable")
        ranked, owners = values[order], self.number(times)[order]
        bins = min(len(ranked), MAX_BINS)
        edges = np.linspace(0, len(ranked), bins + 1).astype(np.int64)
        which = np.searchsorted(edges, np.arange(len(ranked)), side="right") - 1
        table = np.zeros((self.count, bins))
        np.add.at(table, (owners, which), 1.0)
        levels = ranked[np.maximum(edges[1:] - 1, 0)]
        shares = np.cumsum(self.multiplicity @ table, axis=1)
        totals = shares[:, -1:]
        found: list[Estimate] = []
        for percentile in wanted:
            reached = (shares < totals * (percentile / 100.0)).sum(axis=1)
            usable = totals[:, 0] > 0
            spread = levels[np.minimum(reached[usable], bins - 1)]
            found.append(_estimate(float(np.percentile(values, percentile)), spread, len(values)))
        return found


def _estimate(value: float, spread: Floats, samples: int) -> Estimate:
    spread = spread[np.isfinite(spread)]
    if not len(spread):
        return Estimate(value, value, value, samples)
    low, high = np.percentile(spread, [2.5, 97.5])
    return Estimate(value, min(float(low), value), max(float(high), value), samples)
