"""How an outcome is told to a sampler.

Optuna's samplers do not see failed trials, take a crash told as 0 for a good latency, and count a trial without a
constraint as feasible. So whatever taught us something is told as complete, with finite values and with every
constraint; only our own faults are told as failed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autotune.outcome import TrialRecord
from autotune.search.objectives import Objectives


@dataclass(frozen=True, slots=True)
class Told:
    """What a sampler hears: values in the objectives' own directions and units; None for a fault of ours."""

    values: tuple[float, ...] | None
    constraints: tuple[float, ...]

    @property
    def learnt(self) -> bool:
        return self.values is not None


class Encoder:
    """Encodes records one after the other; remembers the worst finite values measured so far."""

    def __init__(self, objectives: Objectives) -> None:
        self._objectives = objectives
        self._worst: tuple[float, ...] | None = None

    def encode(self, record: TrialRecord) -> Told:
        """Real values for a measurement, the worst ones so far with a violated constraint for an infeasible one."""
        constraints = self._objectives.constraints(record)
        if not record.outcome.learn:
            return Told(None, constraints)
        values = self._objectives.values(record)
        if values is None:
            return Told(self.worst, constraints)
        self._remember(values)
        return Told(values, constraints)

    @property
    def worst(self) -> tuple[float, ...]:
        """Worst measured value per objective; before the first measurement, values that no server reaches."""
        if self._worst is not None:
            return self._worst
        return tuple(1e-3 if item.maximize else 1e6 for item in self._objectives.items)

    def _remember(self, values: tuple[float, ...]) -> None:
        if self._worst is None:
            self._worst = values
            return
        self._worst = tuple(
            min(old, new) if item.maximize else max(old, new)
            for item, old, new in zip(self._objectives.items, self._worst, values, strict=True)
        )


def encode_all(records: Iterable[TrialRecord], objectives: Objectives) -> list[tuple[TrialRecord, Told]]:
    """Encode records in their order."""
    encoder = Encoder(objectives)
    return [(record, encoder.encode(record)) for record in records]
