"""Known good settings after the baseline: in their order, those that one engine can become one after the other.

Each changes some settings of what runs today. Where an earlier one has clearly helped and the next one contradicts
nothing of it, the next one is tried on top: changes that help alone mostly help together, and the start is paid once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING

from autotune.outcome import Proposal, TrialRecord
from autotune.search.front import losses_of
from autotune.search.objectives import searched
from autotune.search.restart import PointCosts
from autotune.search.screen import Candidate, Key, Point, Tried
from autotune.space.config import FrozenValue

if TYPE_CHECKING:
    from autotune.search.proposer import Setting
    from autotune.space.experts import Expert

HELPED = math.log(1.15)
"""So much better than the baseline in one objective is help: single runs differ by 3 to 5 %, now and then by more."""
HARMED = math.log(1.05)
"""So much worse in any other objective is none; less is no difference."""


class WarmStart:
    """The known good settings of a study.

    Args:
        setting: of the study.
        experts: in the order in which they are tried.
        stacked: whether one is tried on top of what has helped; else each one as it is.
    """

    def __init__(self, setting: Setting, experts: Sequence[Expert], *, stacked: bool) -> None:
        self._setting = setting
        self._experts = tuple(experts)
        self._alone = {setting.screen.key(expert.point) for expert in experts}
        self._stacked = stacked

    def propose(
        self, tried: Tried, history: Sequence[TrialRecord], running: Sequence[Proposal], place: int
    ) -> Proposal | None:
        """The next one; None when all were tried or are being tried."""
        records = searched(history) if self._stacked else []
        done = [record for record in records if record.proposal.origin == "expert"]
        best = self._best(records, done)
        begun = {one.point for one in (*(record.proposal for record in done), *running) if one.origin == "expert"}
        stacked = begun - self._alone
        judged = ((expert, self._candidate(expert, tried, done, stacked, best)) for expert in self._experts)
        waiting = [(expert, candidate) for expert, candidate in judged if candidate is not None]
        if not waiting:
            return None
        costs = PointCosts(self._setting, history, place)
        expert, candidate = waiting[costs.first_of([one.point for _, one in waiting])]
        alone = self._setting.screen.key(expert.point) == candidate.point
        above = f"on top of trial {best.number}" if best is not None and not alone else ""
        return candidate.proposal("expert", ": ".join(part for part in (expert.name, above, expert.note) if part))

    def _candidate(
        self, expert: Expert, tried: Tried, done: Sequence[TrialRecord], stacked: Set[Key], best: TrialRecord | None
    ) -> Candidate | None:
        """What is tried for a setting; None where it was tried, alone or on top of another one."""
        alone = self._setting.screen.candidate(expert.point, tried)
        if not alone.admitted:
            return None
        if any(self._on_top(alone.point, record) in stacked - {record.proposal.point} for record in done):
            return None
        if best is None or not self._agree(alone.point, best):
            return alone
        both = self._setting.screen.candidate(dict(self._on_top(alone.point, best)), tried)
        return both if both.admitted else alone

    def _on_top(self, point: Key, record: TrialRecord) -> Key:
        return self._setting.screen.key({**dict(point), **self._changes(record.proposal.point)})

    def _agree(self, point: Key, record: TrialRecord) -> bool:
        """Whether a setting changes nothing to another value than a record did."""
        changes = self._changes(point)
        return all(changes.get(name, value) == value for name, value in self._changes(record.proposal.point).items())

    def _best(self, records: Sequence[TrialRecord], done: Sequence[TrialRecord]) -> TrialRecord | None:
        """The best of the settings that were tried, if it is clearly better than the baseline.

        Of those that are about as good it is the one with the fewest changes: what makes no difference is left behind.
        """
        objectives = self._setting.objectives
        good = sorted(filter(objectives.feasible, done), key=objectives.rank)
        today = next((one for one in records if one.proposal.origin == "baseline"), None)
        if not good or today is None or objectives.values(today) is None:
            return None
        before, *after = losses_of([today, *good], objectives)
        alike = [record for record, losses in zip(good, after, strict=True) if (losses - after[0]).max() < HARMED]
        gains = before - after[0]
        helped = gains.max() >= HELPED and gains.min() > -HARMED
        return min(alike, key=lambda record: len(self._changes(record.proposal.point))) if helped else None

    def _changes(self, point: Key) -> Point:
        """What a point changes in the baseline; all of it where the baseline has no place in the space."""
        today: Mapping[str, FrozenValue] = self._setting.screen.space.point_of(self._setting.baseline) or {}
        return {name: value for name, value in point if today.get(name, ...) != value}
