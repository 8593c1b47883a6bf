"""What a proposal costs: a new process, a new compilation, or only a changed setting on a running engine."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from autotune.outcome import Measured, TrialRecord
from autotune.space.config import EngineConfig


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of the parts of a trial.

    Attributes:
        start: a new process whose kernels are compiled already.
        compile: what a compilation adds.
        live: changing settings on a running engine.
        measure: all load levels and the quality gate.
    """

    start: float = 75.0
    compile: float = 45.0
    live: float = 2.0
    measure: float = 40.0

    @classmethod
    def learnt(cls, history: Sequence[TrialRecord], prior: CostModel) -> CostModel:
        """The prior, with medians of what was seen instead."""
        starts = [stage(record, "start") for record in history if record.restarted and stage(record, "start") > 0]
        lives = [stage(record, "start") for record in history if not record.restarted]
        measured = [
            stage(record, "warmup") + stage(record, "measure") + stage(record, "quality")
            for record in history
            if isinstance(record.outcome, Measured)
        ]
        return cls(
            start=statistics.median(starts) if starts else prior.start,
            compile=max(starts) - statistics.median(starts) if len(starts) > 3 else prior.compile,
            live=statistics.median(lives) if lives else prior.live,
            measure=statistics.median(measured) if measured and max(measured) > 0 else prior.measure,
        )


def stage(record: TrialRecord, name: str) -> float:
    """Seconds that a record spent in a stage."""
    return dict(record.stage_seconds).get(name, 0.0)


def running_group(history: Sequence[TrialRecord], live: Collection[str]) -> EngineConfig | None:
    """The configuration that the engine of the latest record was started with, if that engine can still be running."""
    started: EngineConfig | None = None
    for record in history:
        if not isinstance(record.outcome, Measured):
            started = None
        elif record.restarted:
            started = record.config
    return started
