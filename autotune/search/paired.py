"""Paired comparison of configurations that were measured in the same rounds.

Per round, the log-ratio of an arm to the control. Machine and arrival order of a round hit both alike and cancel. The
interval is Student's t on the mean over rounds. The spread is pooled over all arms of the comparison (they share
engine, machine and load); an arm that is clearly more erratic than the others keeps its own spread. Few rounds can
agree by luck, so the interval is never narrower than what the time blocks within the runs say (their own intervals
allow for few blocks, hence the normal quantile). Error shares are divided by the number of comparisons (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from autotune.student import t_quantile

ERRATIC = 4.0
"""An arm whose variance exceeds the pooled one so many times is judged by its own."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """How an arm compares with the control in one objective; above 1 is better, whatever the direction.

    Attributes:
        label: the objective.
        value: geometric mean over the rounds.
        low: lower end of the interval.
        high: upper end of the interval.
        rounds: rounds in which both were measured.
    """

    label: str
    value: float
    low: float
    high: float
    rounds: int

    def __str__(self) -> str:
        return f"x{self.value:.3f} [{self.low:.3f}, {self.high:.3f}] in {self.label} over {self.rounds} rounds"


@dataclass(frozen=True, slots=True)
class Gain:
    """Log-ratio of one round, above 0 is better; `within` is its standard error from time blocks, 0 if unknown."""

    value: float
    within: float = 0.0


def compare(gains: Mapping[str, Sequence[Gain]], label: str, *, error: float, comparisons: int = 1) -> dict[str, Ratio]:
    """Intervals for all arms of one objective.

    Args:
        gains: rounds by arm; an arm may have fewer rounds than others.
        label: the objective's name.
        error: chance that any of the comparisons is off on one side.
        comparisons: number of intervals that share `error`.
    """
    share = error / max(comparisons, 1)
    usable = {arm: one for arm, one in gains.items() if one}
    freedom = sum(len(one) - 1 for one in usable.values())
    pooled = sum(_squares(one) for one in usable.values()) / freedom if freedom else math.inf
    return {arm: _interval(one, label, share, pooled, freedom) for arm, one in usable.items()}


def _interval(gains: Sequence[Gain], label: str, share: float, pooled: float, freedom: int) -> Ratio:
    count = len(gains)
    mean = sum(one.value for one in gains) / count
    if freedom == 0:
        return Ratio(label, math.exp(mean), 0.0, math.inf, count)
    own = _squares(gains) / (count - 1) if count > 1 else 0.0
    erratic = own > ERRATIC * pooled
    within = sum(one.within**2 for one in gains) / count
    quantile = t_quantile(1 - share, count - 1 if erratic else freedom)
    least = NormalDist().inv_cdf(1 - share) * math.sqrt(within)
    half = max(quantile * math.sqrt(own if erratic else pooled), least) / math.sqrt(count)
    return Ratio(label, math.exp(mean), math.exp(mean - half), math.exp(min(mean + half, 700.0)), count)


def _squares(gains: Sequence[Gain]) -> float:
    mean = sum(one.value for one in gains) / len(gains)
    return sum((one.value - mean) ** 2 for one in gains)
