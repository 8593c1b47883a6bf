"""Is the machine still the one that the study began on? The baseline is measured again now and then."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.outcome import Proposal, TrialRecord
from autotune.search.front import baseline_of
from autotune.search.objectives import Objectives
from autotune.search.stop import counted

WIDEN = 0.04
"""Relative change of a sentinel that widens the intervals of the report: beyond run-to-run noise."""
HALT = 0.15
"""Relative change, twice in a row, at which the study's numbers can no longer be compared."""


@dataclass(frozen=True, slots=True)
class Drift:
    """What the sentinels say.

    Attributes:
        verdict: `steady`, `widen` (intervals grow by `spread`) or `stop`.
        spread: standard deviation of the sentinels' log-ratios to the baseline, 0 with fewer than two.
        ratios: throughput-like first objective of every sentinel over the baseline's (above 1 is better).
        sentence: for the reader.
    """

    verdict: str
    spread: float
    ratios: tuple[float, ...]
    sentence: str

    @property
    def extra_spread(self) -> float:
        """Standard deviation that every log-ratio of a confirmation gets on top; 0 where the machine held still."""
        return self.spread if self.verdict == "widen" else 0.0


def next_sentinel(history: Sequence[TrialRecord], every: int) -> Proposal | None:
    """The baseline once more when `every` trials have passed since it was last measured; None otherwise."""
    baseline = baseline_of(history)
    if every <= 0 or baseline is None:
        return None
    watched = [one for one in history if one.proposal.origin in ("baseline", "sentinel") and one.outcome.learn]
    since = [record for record in counted(history) if record.number > watched[-1].number]
    if len(since) < every:
        return None
    return Proposal(baseline.config, baseline.proposal.point, "sentinel", f"{len(since)} trials since the last look")


def drift_of(history: Sequence[TrialRecord], objectives: Objectives) -> Drift:
    """Compare every sentinel with the baseline in the first objective."""
    baseline = baseline_of(history)
    base = objectives.values(baseline) if baseline is not None else None
    if baseline is None or base is None:
        return Drift("steady", 0.0, (), "no baseline to compare with")
    watched = [one for one in history if one.proposal.origin == "sentinel" and one.number > baseline.number]
    sentinels = [objectives.values(one) for one in watched if one.outcome.learn]
    first = objectives.model_losses(base)[0]
    changes = [first - objectives.model_losses(values)[0] for values in sentinels if values is not None]
    if len(changes) < len(sentinels) and sentinels[-1] is None:
        return Drift("stop", math.inf, _ratios(changes), "the baseline can no longer be measured on this machine")
    if not changes:
        return Drift("steady", 0.0, (), "no sentinel measured yet")
    spread = statistics.stdev(changes) if len(changes) > 1 else 0.0
    last = changes[-1]
    moved = f"the baseline now measures x{math.exp(last):.3f} of what it did first"
    if len(changes) > 1 and all(abs(change) > math.log1p(HALT) for change in changes[-2:]) and _same_sign(changes[-2:]):
        return Drift("stop", spread, _ratios(changes), f"{moved}, twice in a row: numbers cannot be compared any more")
    if max(abs(change) for change in changes) > math.log1p(WIDEN):
        return Drift("widen", max(spread, abs(last) / 2), _ratios(changes), f"{moved}; intervals are widened")
    return Drift("steady", spread, _ratios(changes), moved)


def _ratios(changes: Sequence[float]) -> tuple[float, ...]:
    return tuple(math.exp(change) for change in changes)


def _same_sign(changes: Sequence[float]) -> bool:
    return all(change > 0 for change in changes) or all(change < 0 for change in changes)
