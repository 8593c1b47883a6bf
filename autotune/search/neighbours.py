"""Do trials on one host disturb each other? The baseline alone against the baseline beside others, on the same card.

A round measures the baseline at one place while all others are idle, then at all places at once. Who is measured alone
rotates. Both figures of a round come from the same card and the same engine process, so their ratio has neither the
card's nor the start's share. Everything follows from the records, so that a killed check goes on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from autotune.outcome import Broken, Proposal, TrialRecord
from autotune.search.confirm import block_error
from autotune.search.objectives import Objectives
from autotune.search.paired import Gain, Ratio, compare

Verdict: TypeAlias = Literal["open", "undisturbed", "disturbed"]
INVALID = "invalid_measurement"
"""Cause of a fault that beside others is judged here, not taken for the machine's: a client that could not keep up."""
LEAST_ROUNDS = 3
MOST_ROUNDS = 6
FAULTS = 3
"""So many measurements of one round that cannot be believed are a disturbance too."""
ERROR = 0.05
"""Chance that one end of an interval misses the true ratio, over all objectives of a check."""
_ROUNDS = 1000
"""A ticket is the number of places times this, plus the round."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What the rounds say so far.

    Attributes:
        places: trials at the same time.
        ratios: beside over alone, one per objective; above 1 is better.
        verdict: `open` needs another round.
        sentence: for the reader.
    """

    places: int
    ratios: tuple[Ratio, ...]
    verdict: Verdict
    sentence: str


@dataclass(frozen=True, slots=True)
class Round:
    """The next round of a check: who is measured alone, unless that is done, and what all places measure then."""

    places: int
    number: int

    @property
    def watched(self) -> int:
        """The place that is measured alone."""
        return self.number % self.places

    @property
    def ticket(self) -> int:
        return self.places * _ROUNDS + self.number

    def alone(self, baseline: Proposal) -> Proposal:
        note = f"round {self.number + 1} of {self.places} at a time: alone"
        return Proposal(baseline.config, baseline.point, "alone", note, self.ticket)

    def beside(self, baseline: Proposal) -> Proposal:
        note = f"round {self.number + 1} of {self.places} at a time: beside the others"
        return Proposal(baseline.config, baseline.point, "beside", note, self.ticket)


def levels(wanted: int) -> tuple[int, ...]:
    """How many at a time are tried: as many as wanted, then half of it, down to two."""
    found = []
    while wanted > 1:
        found.append(wanted)
        wanted //= 2
    return tuple(found)


def next_round(records: Sequence[TrialRecord], places: int) -> Round:
    """The first round that is not complete; a round that was interrupted is measured again from its begin."""
    number = 0
    while _pair(records, Round(places, number)) is not None:
        number += 1
    return Round(places, number)


def judge(records: Sequence[TrialRecord], objectives: Objectives, places: int, limit: float) -> Disturbance:
    """What the complete rounds with so many places say.

    Args:
        records: of the study.
        objectives: all of them are compared.
        places: trials at the same time.
        limit: loss that is tolerated, as a share.

    Returns:
        `undisturbed` where every objective's interval lies above 1 - limit, `disturbed` where one lies below; after
        `MOST_ROUNDS` the ratio itself decides, and the sentence says that it had to.
    """
    pairs: list[tuple[TrialRecord, tuple[TrialRecord, ...]]] = []
    while (pair := _pair(records, Round(places, len(pairs)))) is not None:
        pairs.append(pair)
    head = f"{places} at a time"
    for _, beside in pairs:
        failed = [one for one in beside if objectives.values(one) is None]
        if failed:
            return Disturbance(places, (), "disturbed", f"{head}: the baseline could not be measured beside others")
    if _faults(records, Round(places, len(pairs))) >= FAULTS:
        return Disturbance(places, (), "disturbed", f"{head}: measurements of the baseline break beside others")
    ratios = _ratios(pairs, objectives)
    if len(pairs) < LEAST_ROUNDS or not ratios:
        return Disturbance(places, ratios, "open", f"{head}: {len(pairs)} rounds measured")
    verdict: Verdict = "open"
    if all(ratio.low >= 1 - limit for ratio in ratios):
        verdict = "undisturbed"
    elif any(ratio.high < 1 - limit for ratio in ratios):
        verdict = "disturbed"
    elif len(pairs) >= MOST_ROUNDS:
        verdict = "disturbed" if any(ratio.value < 1 - limit for ratio in ratios) else "undisturbed"
    told = all(ratio.low >= 1 - limit or ratio.high < 1 - limit for ratio in ratios)
    said = f"{head} are {verdict}" if told else f"{head} are taken for {verdict}, the rounds differ too much to tell"
    words = "; ".join(map(str, ratios))
    return Disturbance(places, ratios, verdict, f"{said}: beside over alone {words}")


def _faults(records: Sequence[TrialRecord], one: Round) -> int:
    """Measurements of a round that cannot be believed, such as of a client that could not keep up."""
    found = (r.outcome for r in records if r.proposal.ticket == one.ticket and r.proposal.origin == "beside")
    return sum(isinstance(outcome, Broken) and outcome.cause == INVALID for outcome in found)


def _pair(records: Sequence[TrialRecord], one: Round) -> tuple[TrialRecord, tuple[TrialRecord, ...]] | None:
    """The record alone and those beside, the watched place first; None where the round is not complete."""
    found = [r for r in records if r.proposal.ticket == one.ticket and not isinstance(r.outcome, Broken)]
    alone = [r for r in found if r.proposal.origin == "alone" and r.place == one.watched]
    beside = {r.place: r for r in found if r.proposal.origin == "beside"}
    if not alone or len(beside) < one.places:
        return None
    others = (record for place, record in beside.items() if place != one.watched)
    return alone[-1], (beside[one.watched], *others)


def _ratios(pairs: Sequence[tuple[TrialRecord, tuple[TrialRecord, ...]]], objectives: Objectives) -> tuple[Ratio, ...]:
    found: list[Ratio] = []
    for index, item in enumerate(objectives.items):
        gains = []
        for alone, beside in pairs:
            before, after = objectives.values(alone), objectives.values(beside[0])
            if before is None or after is None:
                continue
            value = objectives.model_losses(before)[index] - objectives.model_losses(after)[index]
            within = math.hypot(block_error(alone, item, objectives), block_error(beside[0], item, objectives))
            gains.append(Gain(value, within))
        compared = compare({"beside": gains}, item.label, error=ERROR, comparisons=len(objectives.items))
        found += compared.values()
    return tuple(found) if len(found) == len(objectives.items) else ()
