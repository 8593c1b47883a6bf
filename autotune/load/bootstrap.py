"""Intervals by resampling blocks of time: neighbours in time are alike, so single samples must not be resampled."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autotune.load.records import Floats, Ints
from autotune.load.report import Estimate
from autotune.student import small_sample_factor

REPLICATES = 1000
MAX_BINS = 2000
"""Percentiles of more samples than this are resampled on so many bins of equal count."""


class Blocks:
    """A window cut into blocks, and the same resampled block sets for every metric (seeded, so repeatable).

    Args:
        edges: begin of the first block, then the end of each, in seconds.
    """

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = np.asarray(edges, dtype=np.float64)
        self.lengths = np.diff(self.edges)
        self.count = len(self.lengths)
        picks = np.random.default_rng(20).integers(0, self.count, (REPLICATES, self.count))
        self.multiplicity = np.apply_along_axis(np.bincount, 1, picks, minlength=self.count).astype(np.float64)
        self.widen = small_sample_factor(self.count)

    @classmethod
    def equal(cls, start: float, end: float, count: int) -> Blocks:
        """`count` blocks of one length."""
        return cls(np.linspace(start, end, count + 1).tolist())

    def number(self, times: Floats) -> Ints:
        """The block of each time."""
        return np.clip(np.searchsorted(self.edges, times, side="right") - 1, 0, self.count - 1)

    def _sums(self, values: Floats, times: Floats) -> Floats:
        return np.bincount(self.number(times), weights=values, minlength=self.count).astype(np.float64)

    def rate(self, times: Floats, weights: Floats) -> Estimate:
        """Sum of weights a second."""
        sums = self._sums(weights, times)
        spread = self.multiplicity @ sums / (self.multiplicity @ self.lengths)
        return _estimate(float(sums.sum() / self.lengths.sum()), spread, len(times), self.widen)

    def ratio(self, above: Floats, below: Floats, times: Floats) -> Estimate:
        """Sum of `above` over sum of `below`."""
        top, bottom = self._sums(above, times), self._sums(below, times)
        with np.errstate(invalid="ignore", divide="ignore"):
            spread = (self.multiplicity @ top) / (self.multiplicity @ bottom)
        return _estimate(float(top.sum() / bottom.sum()) if bottom.sum() else 0.0, spread, len(times), self.widen)

    def share(self, marks: Floats, times: Floats) -> Estimate:
        """Share of ones among `marks`. An interval that is widened for few blocks stays between 0 and 1."""
        found = self.ratio(marks, np.ones(len(marks)), times)
        return Estimate(found.value, max(found.low, 0.0), min(found.high, 1.0), found.n)

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


def _estimate(value: float, spread: Floats, samples: int, widen: float = 1.0) -> Estimate:
    spread = spread[np.isfinite(spread)]
    if not len(spread):
        return Estimate(value, value, value, samples)
    low, high = (value + widen * (float(end) - value) for end in np.percentile(spread, [2.5, 97.5]))
    least = 0.0 if float(spread.min()) >= 0 else -math.inf
    return Estimate(value, max(min(low, value), least), max(high, value), samples)
