"""Where a server saturates, and the highest load that still holds the SLOs. Decides only; measuring is the caller's."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from autotune.errors import SpecError
from autotune.load.metrics import latency_key
from autotune.load.report import Level, LevelReport
from autotune.spec.study import LoadSpec, SloSpec

Measure = Callable[[Level], Awaitable[LevelReport]]

FLAT_GAIN = 0.03
"""Throughput growth of a step below which it counts as flat."""
FLAT_STEPS = 2
"""Flat steps in a row after which a ramp ends: beyond them only latency grows."""
SATURATED_SLOPE = 0.25
"""A curve is saturated when its last step turned less than this share of the added load into throughput."""
LATENCY = latency_key("ttft", 95)


@dataclass(frozen=True, slots=True)
class Ramp:
    """Levels from `start` to `end`, each `factor` times the one before."""

    start: float
    end: float
    factor: float

    @classmethod
    def parse(cls, text: str) -> Ramp:
        """Read ``16:512:1.5``.

        Raises:
            SpecError: it is no ramp.
        """
        match = re.fullmatch(r"([\d.]+):([\d.]+)(?::([\d.]+))?", text.strip())
        hint = "write START:STOP:FACTOR, such as 16:512:1.5, with START below STOP and FACTOR above 1"
        if match is None:
            raise SpecError(f"{text!r} is no ramp", key="--ramp", hint=hint)
        try:
            start, end, factor = float(match[1]), float(match[2]), float(match[3] or 1.5)
        except ValueError:
            raise SpecError(f"{text!r} is no ramp", key="--ramp", hint=hint) from None
        if not 0 < start < end or factor <= 1:
            raise SpecError(f"{text!r} is no ramp", key="--ramp", hint=hint)
        return cls(start, end, factor)

    def levels(self, kind: str) -> list[Level]:
        """The levels, the end included; concurrencies are whole and different."""
        values: list[float] = []
        value = self.start
        while value < self.end * (1 - 1e-9):
            values.append(value)
            value *= self.factor
        values.append(self.end)
        if kind == "closed":
            values = [float(item) for item in sorted({max(1, round(item)) for item in values})]
        return [Level(kind, item) for item in values]


@dataclass(frozen=True, slots=True)
class Knee:
    """Where throughput stops growing and latency begins to.

    Attributes:
        level: the knee.
        saturated: the ramp went far enough beyond it to see saturation; else the knee may lie higher.
    """

    level: Level
    saturated: bool


def _value(report: LevelReport, key: str) -> float:
    found = report.estimate(key)
    return found.value if found is not None else math.nan


def _latency(report: LevelReport) -> float:
    """p95 TTFT, or the mean where a level has too few requests for it."""
    found = _value(report, LATENCY)
    return found if not math.isnan(found) else _value(report, "ttft_mean_ms")


def locate_knee(reports: Sequence[LevelReport]) -> Knee | None:
    """The saturation knee of a measured curve, or None with fewer than three usable levels.

    Throughput against p95 TTFT, both scaled to 0..1 over the curve; the knee is the level furthest above the diagonal
    (Satopaa et al., "Finding a 'kneedle' in a haystack", 2011): the one that gives the largest part of the throughput
    for the smallest part of the latency.
    """
    points = [(item.level, _value(item, "output_throughput"), _latency(item)) for item in reports]
    points = [point for point in points if not (math.isnan(point[1]) or math.isnan(point[2]))]
    if len(points) < 3:
        return None
    rates, waits = [point[1] for point in points], [point[2] for point in points]
    rate_span, wait_span = max(rates) - min(rates) or 1.0, max(waits) - min(waits) or 1.0
    heights = [(r - min(rates)) / rate_span - (w - min(waits)) / wait_span for _, r, w in points]
    best = max(range(len(points)), key=lambda number: heights[number])
    added = points[-1][0].value / points[-2][0].value - 1.0
    slope = (rates[-1] / rates[-2] - 1.0) / added if added > 0 and rates[-2] > 0 else 1.0
    return Knee(points[best][0], saturated=slope < SATURATED_SLOPE)


def flat_tail(rates: Sequence[float]) -> bool:
    """Whether the last steps brought no more throughput."""
    if len(rates) <= FLAT_STEPS:
        return False
    best_before = max(rates[: len(rates) - FLAT_STEPS])
    return max(rates[-FLAT_STEPS:]) < best_before * (1 + FLAT_GAIN)


async def climb(measure: Measure, ramp: Ramp, kind: str) -> list[LevelReport]:
    """Measure the ramp upwards; ends early when throughput is flat for two steps or nothing is answered any more."""
    reports: list[LevelReport] = []
    for level in ramp.levels(kind):
        report = await measure(level)
        reports.append(report)
        rates = [_value(item, "output_throughput") for item in reports]
        if math.isnan(rates[-1]) or flat_tail(rates):
            break
    return reports


def holds(report: LevelReport, slos: Sequence[SloSpec]) -> bool:
    """Whether a level holds all SLOs; one that was stopped, is invalid or has errors beyond 1 % does not."""
    if report.stopped is not None or report.invalid or _value(report, "error_share") > 0.01:
        return False
    for slo in slos:
        found = report.estimate(latency_key(slo.metric, slo.percentile))
        if found is None or found.value > slo.limit * 1e3:
            return False
    return True


async def find_capacity(
    measure: Measure, slos: Sequence[SloSpec], low: Level, high: Level, *, tolerance: float = 0.05
) -> tuple[Level | None, list[LevelReport]]:
    """The highest level between `low` and `high` that holds the SLOs, by bisection on a logarithmic scale.

    Args:
        tolerance: stop when the bracket is this narrow, relative to its lower end.

    Returns:
        The level (None if not even `low` holds) and everything that was measured on the way.
    """
    reports = [await measure(low)]
    if not holds(reports[0], slos):
        return None, reports
    reports.append(await measure(high))
    if holds(reports[1], slos):
        return high, reports
    good, bad = low.value, high.value
    while bad > good * (1 + tolerance):
        middle = math.sqrt(good * bad)
        if low.kind == "closed":
            middle = float(round(middle))
            if middle in (good, bad):
                break
        report = await measure(Level(low.kind, middle))
        reports.append(report)
        good, bad = (middle, bad) if holds(report, slos) else (good, middle)
    return Level(low.kind, good), reports


def load_at_knee(load: LoadSpec, knee: Level) -> LoadSpec:
    """The load with its level placed at `load.knee` times the baseline's knee; unchanged where `knee` is not set.

    The placed load has no `knee` any more, so that it can be stored and read back: it stands beside no `levels`.
    """
    if load.knee is None:
        return load
    value = load.knee * knee.value
    level = float(max(1, round(value))) if knee.kind == "closed" else value
    return load.model_copy(update={"levels": [level], "knee": None})
