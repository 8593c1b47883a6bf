"""When to stop proposing, and the sentence that says why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.outcome import Infeasible, TrialRecord
from autotune.search.front import feasible_hypervolume, losses_of, reference_of
from autotune.search.objectives import REPEATS, TAKEN_OVER, Objectives
from autotune.spec.study import SearchSpec
from autotune.spec.units import duration_text

GAIN = 0.005
"""A relative gain of the hypervolume below this is no gain: it is within the noise of a measurement."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Why the search ends.

    Attributes:
        rule: `trials`, `wall_clock`, `gpu_hours`, `patience` or `exhausted`.
        sentence: for the reader.
    """

    rule: str
    sentence: str


@dataclass(frozen=True, slots=True)
class StopRule:
    """The limits of a search. None is no limit.

    Attributes:
        trials: measured configurations, the baseline included; repeats and refusals before a start do not count.
        wall_clock: seconds since the study began.
        gpu_hours: GPU hours of all trials.
        patience: measured trials without a gain of the feasible hypervolume.
    """

    trials: int | None = None
    wall_clock: float | None = None
    gpu_hours: float | None = None
    patience: int | None = None

    @classmethod
    def of(cls, spec: SearchSpec) -> StopRule:
        return cls(spec.trials, spec.wall_clock, spec.gpu_hours, spec.patience)

    def check(self, history: Sequence[TrialRecord], objectives: Objectives, *, elapsed: float) -> Stop | None:
        """The first limit that is reached, or None.

        Args:
            history: all records of the study.
            objectives: for the hypervolume.
            elapsed: seconds since the study began, over all its sessions.
        """
        count = len(counted(history))
        if self.trials is not None and count >= self.trials:
            beyond = f"{count} trials are done, the limit is {self.trials}"  # lowered since
            return Stop("trials", beyond if count > self.trials else f"{count} of {self.trials} trials are done")
        if self.wall_clock is not None and elapsed >= self.wall_clock:
            return Stop("wall_clock", f"the wall clock of {duration_text(self.wall_clock)} is used up")
        hours = sum(record.seconds * record.gpus for record in history) / 3600
        if self.gpu_hours is not None and hours >= self.gpu_hours:
            return Stop("gpu_hours", f"{hours:.3g} of {self.gpu_hours:g} GPU hours are used")
        if self.patience is None:
            return None
        idle = trials_without_gain(history, objectives)
        if idle >= self.patience:
            return Stop("patience", f"the front has not gained in the last {idle} measured trials")
        return None


def counted(history: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The trials that use up a budget: learnt something, took an engine start, and are no repeats.

    A baseline that cannot serve ends a study before it has begun, so it uses up nothing either. Nor does what an
    earlier study measured.
    """
    return [
        record
        for record in history
        if record.outcome.learn
        and record.proposal.origin not in (*REPEATS, TAKEN_OVER)
        and not (
            isinstance(record.outcome, Infeasible)
            and (not record.outcome.started or record.proposal.origin == "baseline")
        )
    ]


def trials_without_gain(history: Sequence[TrialRecord], objectives: Objectives) -> int:
    """Measured trials since the feasible hypervolume last grew. 0 before the first feasible trial.

    What an earlier study measured has to be surpassed, too.
    """
    known = [one for one in history if one.proposal.origin == TAKEN_OVER and objectives.values(one) is not None]
    trials = [one for one in counted(history) if objectives.values(one) is not None]
    if not trials or not any(objectives.feasible(record) for record in (*known, *trials)):
        return 0
    reference = reference_of(losses_of([*known, *trials], objectives))
    total = feasible_hypervolume([*known, *trials], objectives, reference)
    # Volumes only grow along the study, so the last gain is where the prefix first comes close to the total.
    low, high = 0 if known else 1, len(trials)
    while low < high:
        middle = (low + high) // 2
        if feasible_hypervolume([*known, *trials[:middle]], objectives, reference) >= total * (1 - GAIN):
            high = middle
        else:
            low = middle + 1
    return len(trials) - low
