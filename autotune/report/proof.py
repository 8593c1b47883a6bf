"""Figures of a proof: what the fresh starts of one configuration measured, taken together.

A figure of the search chose the configuration, so it was partly lucky; what is shown as proven comes from here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.load.report import Estimate
from autotune.outcome import Measured, TrialRecord
from autotune.space.config import EngineConfig


def proof_of(records: Sequence[TrialRecord], config: EngineConfig) -> tuple[TrialRecord, ...]:
    """The confirmation's measured starts of `config`, in their order; empty where it was not confirmed."""
    return tuple(
        one
        for one in records
        if one.proposal.origin == "confirm" and one.config.hash == config.hash and isinstance(one.outcome, Measured)
    )


def over_starts(found: Sequence[Estimate]) -> Estimate:
    """One figure of several starts: their geometric mean, because ratios of starts are what is compared.

    Its interval spans those of the starts, each 95 %. Where a figure is zero the plain mean is taken.
    """
    values = [one.value for one in found]
    positive = all(value > 0 for value in values)
    mean = math.exp(math.fsum(map(math.log, values)) / len(values)) if positive else math.fsum(values) / len(values)
    low, high = min(one.low for one in found), max(one.high for one in found)
    mean = min(max(mean, low), high)  # equal starts: their mean is off by the rounding of logarithms
    return Estimate(mean, low, high, sum(one.n for one in found))
