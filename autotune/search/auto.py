"""The default search: a model of what was measured, asked for the most gain per GPU second.

Candidates are changes of good configurations, mixtures of two, random points, and what the running engine can do
without a restart. A restart costs minutes and a live change seconds, so a restart group is filled while its members
are still worth their measurement, and a compiled configuration is preferred to one that has to be compiled.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from autotune.outcome import Proposal, TrialRecord
from autotune.search.acquisition import Expectation, Sample
from autotune.search.features import Features
from autotune.search.local import LocalStrategy, explain, mutate, parents_of
from autotune.search.proposer import Setting, Situation
from autotune.search.restart import PointCosts
from autotune.search.screen import Candidate, Key, Point
from autotune.space.config import FrozenValue

CHANGED = 260
MIXED = 80
RANDOM = 60
SIBLINGS = 64
REFINED = 140
ROUNDS = 2

LIKELY = 0.35
"""Chance to be feasible from which a candidate is taken seriously: models know least where nothing has ever run."""
BOLD = (1.0, 2.0)
"""Factors on the models' uncertainty, in turn: every second proposal looks where little is known."""
PEAKS = 12

THRIFT = 0.5
"""Power of the cost: at 1 the search would always take the cheap change and learn little."""
MOST_PENDING = 64
"""So many of the points that are being measured are told to the models, the latest; all of them keep neighbours off."""
ENOUGH = 4
"""Measured points needed before the model is asked."""


class AutoStrategy:
    """Model-guided, cost-aware search; local changes until there are enough points for a model."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._local = LocalStrategy(setting)
        self._features = Features(setting.screen.space)
        self._known: dict[int, tuple[Sample, Key]] = {}
        """By number: every proposal asks for the places of all records in the space."""

    def suggest(self, situation: Situation) -> Proposal | None:
        samples = self._samples(situation)
        measured = sum(self._setting.objectives.values(one.record) is not None for one in samples)
        if measured < ENOUGH or self._features.count == 0:
            return self._local.suggest(situation)
        # The matrices are small: one thread is faster than many, and leaves the cores to engine and load client.
        with threadpool_limits(limits=1, user_api="blas"):
            expectation = Expectation(
                samples,
                self._features,
                self._setting.objectives,
                situation.seed,
                pending=[dict(key) for key in situation.tried.pending][-MOST_PENDING:],
            )
            found = self._search(situation, expectation, samples)
        return found or self._local.suggest(situation)

    def _samples(self, situation: Situation) -> list[Sample]:
        """Every record with a place in the space; a baseline outside of it stands at its nearest point."""
        samples: list[Sample] = []
        for record in situation.records:
            known = self._known.get(record.number)
            if known is None or known[0].record is not record:
                point = dict(record.proposal.point) or self._setting.screen.space.point_of(record.config)
                if not point:
                    continue
                known = self._known[record.number] = Sample(record, point), self._setting.screen.key(point)
            samples.append(known[0])
        return samples

    def _search(self, situation: Situation, expectation: Expectation, samples: Sequence[Sample]) -> Proposal | None:
        rng = situation.rng
        costs = PointCosts(self._setting, situation.history, situation.place)
        view = _View(expectation, costs, BOLD[(len(situation.history) + len(situation.running)) % len(BOLD)])
        seen = {self._known[one.record.number][1] for one in samples} | set(situation.tried.pending)
        pool = self._legal(self._first(situation, rng, costs), seen)
        for _ in range(ROUNDS):
            best = view.rank(pool)[:PEAKS]
            if not best:
                return None
            around = (
                mutate(self._setting.screen, dict(best[index % len(best)]), rng, 1 + index % 2)
                for index in range(REFINED)
            )
            pool = list(dict.fromkeys([*best, *self._legal(around, seen)]))
        for key in view.rank(pool):
            candidate = self._setting.screen.candidate(dict(key), situation.tried)
            if candidate.admitted:
                return self._proposal(candidate, samples, costs)
        return None

    def _first(self, situation: Situation, rng: random.Random, costs: PointCosts) -> list[Point]:
        parents = [dict(record.proposal.point) for record in self._parents(situation.records)]
        screen = self._setting.screen
        points = [screen.random_point(rng) for _ in range(RANDOM)]
        if parents:
            points += [mutate(screen, rng.choice(parents), rng, 1 + index % 3) for index in range(CHANGED)]
            points += [_mixture(rng.choice(parents), rng.choice(parents), rng) for _ in range(MIXED)]
        return points + costs.siblings(rng, SIBLINGS)

    def _parents(self, records: Sequence[TrialRecord]) -> list[TrialRecord]:
        """The front and the next best ones."""
        front = parents_of(records, self._setting)
        objectives = self._setting.objectives
        feasible = (one for one in records if objectives.feasible(one) and one.proposal.point)
        ranked = heapq.nsmallest(6, feasible, key=objectives.rank)
        return [*front, *(record for record in ranked if record not in front)]

    def _legal(self, points: Iterable[Mapping[str, FrozenValue]], seen: set[Key]) -> list[Key]:
        """Canonical points that the space allows and that were not measured."""
        screen = self._setting.screen
        keys = dict.fromkeys(screen.key(point) for point in points)
        return [key for key in keys if key not in seen and screen.illegal(key) is None]

    def _proposal(self, candidate: Candidate, samples: Sequence[Sample], costs: PointCosts) -> Proposal:
        point = dict(candidate.point)
        nearest = min(samples, key=lambda one: _changes(one.point, point))
        note = explain(nearest.point, point, nearest.record.number)
        return candidate.proposal("sampler", f"{note} ({costs.kind(candidate.point)})")


@dataclass(frozen=True)
class _View:
    """How candidates look at one moment."""

    expectation: Expectation
    costs: PointCosts
    boldness: float

    def rank(self, keys: Sequence[Key]) -> list[Key]:
        """Most expected gain per cost first, but what probably fails only after everything else."""
        if not keys:
            return []
        gains, chances = self.expectation.gain([dict(key) for key in keys], boldness=self.boldness)
        seconds = [self.costs.seconds(key, float(chance)) for key, chance in zip(keys, chances, strict=True)]
        worth = gains / np.asarray(seconds) ** THRIFT
        return [keys[index] for index in np.lexsort((-worth, chances < LIKELY))]


def _changes(first: Mapping[str, FrozenValue], second: Mapping[str, FrozenValue]) -> int:
    return sum(first.get(name, ...) != second.get(name, ...) for name in first.keys() | second.keys())


def _mixture(first: Point, second: Point, rng: random.Random) -> Point:
    """Each setting from one of two parents."""
    merged = {**first, **second}
    return {name: rng.choice([parent[name] for parent in (first, second) if name in parent]) for name in merged}
