"""One figure for a whole curve of load levels: the mean of a metric over the load, by the area under the curve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from autotune.load.report import Estimate, LevelReport


def curve_weights(levels: Sequence[float]) -> list[float]:
    """The weight of each level in the mean over the load; they sum to 1.

    The load's axis is logarithmic, because a doubling of the load is the same step wherever it begins, and neighbours
    are joined by straight lines (trapezoids). `levels` are different and ascending, two at least.
    """
    places = [math.log(level) for level in levels]
    span = places[-1] - places[0]
    widths = [0.0, *(after - before for before, after in pairwise(places)), 0.0]
    return [(left + right) / 2 / span for left, right in pairwise(widths)]


def area_of(levels: Sequence[LevelReport], key: str) -> Estimate | None:
    """The mean of a metric over the measured range of load, in the metric's own unit.

    Rates and shares are averaged as they are; latencies (keys that end in ``_ms``) by their logarithms, so that a
    saturated level does not drown all others. The interval joins those of the levels, which are independent.

    Returns:
        The mean, or None with fewer than two different levels or where one of them has no figure.
    """
    ordered = sorted({one.level.value: one for one in levels}.values(), key=lambda one: one.level.value)
    figures = [found for one in ordered if (found := _figure(one, key)) is not None]
    if len(ordered) < 2 or len(figures) < len(ordered):
        return None
    weights = curve_weights([one.level.value for one in ordered])
    count = sum(item.n for item in figures)
    if not key.endswith("_ms"):
        value = sum(w * item.value for w, item in zip(weights, figures, strict=True))
        below = math.hypot(*(w * (item.value - item.low) for w, item in zip(weights, figures, strict=True)))
        above = math.hypot(*(w * (item.high - item.value) for w, item in zip(weights, figures, strict=True)))
        return Estimate(value, value - below, value + above, count)
    if min(item.low for item in figures) <= 0:
        return None
    middle = math.exp(sum(w * math.log(item.value) for w, item in zip(weights, figures, strict=True)))
    down = math.hypot(*(w * math.log(item.value / item.low) for w, item in zip(weights, figures, strict=True)))
    up = math.hypot(*(w * math.log(item.high / item.value) for w, item in zip(weights, figures, strict=True)))
    return Estimate(middle, middle * math.exp(-down), middle * math.exp(up), count)


def _figure(report: LevelReport, key: str) -> Estimate | None:
    found = report.estimate(key)
    if found is None and (plain := dict(report.engine).get(key)) is not None:
        found = Estimate(plain, plain, plain, 0)
    return found if found is not None and math.isfinite(found.value) else None
