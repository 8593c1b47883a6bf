"""What happens during a study, as values. Views (terminal, plain lines, JSON) are made of these and of nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

from autotune.outcome import Proposal, TrialRecord


@dataclass(frozen=True, slots=True)
class StudyStarted:
    """A study begins or goes on. `finished` trials were found in the store; `seconds_left` of `search.wall_clock`."""

    name: str
    folder: Path
    budget: int
    finished: tuple[TrialRecord, ...]
    simulated: bool
    notes: tuple[str, ...] = ()
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True)
class NeighboursChecked:
    """The baseline was measured alone and beside others. `verdict` is `undisturbed` or `disturbed` (then fewer run)."""

    places: int
    verdict: str
    sentence: str


@dataclass(frozen=True, slots=True)
class TrialStarted:
    """A trial begins. `expected_s` is the median of finished trials, or None."""

    number: int
    proposal: Proposal
    expected_s: float | None


PLACED = "placed"
"""The stage in which a load that stands relative to the baseline's knee has found its level; its detail says where."""


@dataclass(frozen=True, slots=True)
class StageStarted:
    """A trial enters a stage: `start`, `knee`, `placed`, `measure`, `quality`, `stop`; `detail` is for people."""

    number: int
    stage: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class TrialFinished:
    """A trial is in the store."""

    record: TrialRecord
    retried: bool = False


@dataclass(frozen=True, slots=True)
class ConfirmationStarted:
    """The search is over; finalists and baseline are measured again on fresh starts."""

    reason: str
    runs: int


@dataclass(frozen=True, slots=True)
class StudyFinished:
    """The end. `summary` is what a newcomer should read."""

    reason: str
    summary: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())


Event: TypeAlias = (
    StudyStarted | NeighboursChecked | TrialStarted | StageStarted | TrialFinished | ConfirmationStarted | StudyFinished
)


class Observer(Protocol):
    """Is told what happens. Must not raise and must not block."""

    def notify(self, event: Event) -> None: ...


class Silent:
    """An observer that looks away."""

    def notify(self, event: Event) -> None:
        """Ignore the event."""
