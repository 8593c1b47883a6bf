"""The default search: a model of what was measured, asked for the most gain per GPU second.

Candidates are a few changes of good configurations, mixtures of two, and what the running engine can do without a
restart. A restart costs minutes and a live change seconds, so a restart group is filled while its members are still
worth their measurement, and a compiled configuration is preferred to one that has to be compiled. Where nothing has got
better for a while, values are measured that the model has only seen far from good configurations.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from autotune.outcome import Proposal, TrialRecord
from autotune.search.acquisition import Expectation, Sample
from autotune.search.features import Features
from autotune.search.local import LocalStrategy, explain, mutate, parents_of
from autotune.search.neglect import neglected_choices, neglected_ends, neglected_layouts
from autotune.search.proposer import Setting, Situation
from autotune.search.restart import PointCosts
from autotune.search.screen import Candidate, Key, Point, Screen
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
REACH = 2
"""Settings that a candidate changes at most in one of the good configurations: more at once mostly spoil each other."""
STUCK = 8
"""After so many measurements without a gain, every second proposal is something that was neglected."""

UNEVEN = 6
"""After so many, layouts are compared at one limit of the whole engine: what they were judged by was a queue."""

THRIFT = 0.5
"""Power of the cost: at 1 the search would always take the cheap change and learn little."""
MOST_KNOWN = 1000
"""What was tried before the latest so many trials keeps nothing from being neglected: looking through takes time."""
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
        costs = PointCosts(self._setting, situation.history, situation.place)
        view = _View(expectation, costs, BOLD[(len(situation.history) + len(situation.running)) % len(BOLD)])
        seen = {self._known[one.record.number][1] for one in samples} | set(situation.tried.pending)
        good = [dict(record.proposal.point) for record in self._parents(situation.records)]
        field = _Field(self._setting.screen, costs, good, seen)
        neglected = self._uneven(situation, field, view, samples) if expectation.stagnant >= UNEVEN else []
        neglected += self._neglected(situation, field, view, samples) if expectation.stagnant >= STUCK else []
        for key in itertools.chain(neglected, self._refined(situation, field, view)):
            candidate = self._setting.screen.candidate(dict(key), situation.tried)
            if candidate.admitted:
                return self._proposal(candidate, samples, costs)
        return None

    def _refined(self, situation: Situation, field: _Field, view: _View) -> Iterator[Key]:
        """Candidates and what lies around the best of them, best first."""
        rng = situation.rng
        pool = field.near(self._first(rng, field))
        for _ in range(ROUNDS):
            best = view.rank(pool)[:PEAKS]
            if not best:
                return
            around = (
                mutate(self._setting.screen, dict(best[index % len(best)]), rng, 1 + index % 2)
                for index in range(REFINED)
            )
            pool = list(dict.fromkeys([*best, *field.near(around)]))
        yield from view.rank(pool)

    def _uneven(self, situation: Situation, field: _Field, view: _View, samples: Sequence[Sample]) -> list[Key]:
        """Layouts that were never measured with what a good configuration lets the whole engine take in."""
        if field.screen.whole is None:
            return []
        known = [*(one.point for one in samples), *map(dict, situation.tried.pending)]
        return view.likely(field.legal(neglected_layouts(field.screen.whole, field.good, known)))

    def _neglected(self, situation: Situation, field: _Field, view: _View, samples: Sequence[Sample]) -> list[Key]:
        """Ends of what the running engine can become, which cost little, and in every second proposal other choices."""
        known = [one.point for one in samples[-MOST_KNOWN:]]
        keys = [self._setting.screen.key(point) for point in field.good]
        ends = field.legal(neglected_ends(self._setting.live, field.costs.ends(keys), known))
        if view.boldness < max(BOLD):
            return view.likely(ends)
        front = [dict(record.proposal.point) for record in parents_of(situation.records, self._setting)]
        return view.likely([*ends, *field.legal(neglected_choices(self._setting.screen.space, front, known))])

    def _first(self, rng: random.Random, field: _Field) -> list[Point]:
        screen, good = self._setting.screen, field.good
        points = [screen.random_point(rng) for _ in range(RANDOM)]
        if good:
            points += [mutate(screen, rng.choice(good), rng, 1 + index % 3) for index in range(CHANGED)]
            points += [_mixture(rng.choice(good), rng.choice(good), rng) for _ in range(MIXED)]
        return points + field.costs.siblings(rng, SIBLINGS)

    def _parents(self, records: Sequence[TrialRecord]) -> list[TrialRecord]:
        """The front and the next best ones."""
        front = parents_of(records, self._setting)
        objectives = self._setting.objectives
        feasible = (one for one in records if objectives.feasible(one) and one.proposal.point)
        ranked = heapq.nsmallest(6, feasible, key=objectives.rank)
        return [*front, *(record for record in ranked if record not in front)]

    def _proposal(self, candidate: Candidate, samples: Sequence[Sample], costs: PointCosts) -> Proposal:
        point = dict(candidate.point)
        nearest = min(samples, key=lambda one: _changes(one.point, point))
        note = explain(nearest.point, point, nearest.record.number)
        return candidate.proposal("sampler", f"{note} ({costs.kind(candidate.point)})")


@dataclass(frozen=True)
class _Field:
    """Where candidates may lie at one moment.

    Attributes:
        good: the best configurations.
        seen: what was measured or is being measured.
    """

    screen: Screen
    costs: PointCosts
    good: Sequence[Point]
    seen: set[Key]

    def legal(self, points: Iterable[Mapping[str, FrozenValue]]) -> list[Key]:
        """Canonical points that the space allows and that were not measured."""
        keys = dict.fromkeys(self.screen.key(point) for point in points)
        return [key for key in keys if key not in self.seen and self.screen.illegal(key) is None]

    def near(self, points: Iterable[Mapping[str, FrozenValue]]) -> list[Key]:
        """The legal ones that change little in a good configuration and, live, one setting at a time."""
        return [key for key in self.legal(points) if self._reachable(dict(key)) and not self.costs.leaps(key)]

    def _reachable(self, point: Point) -> bool:
        return not self.good or any(self._steps(one, point) <= REACH for one in self.good)

    def _steps(self, before: Point, point: Point) -> int:
        """Settings that differ; a layout that keeps the limit of the whole engine is one."""
        steps = sum(before[name] != point[name] for name in before.keys() & point.keys())
        whole = self.screen.whole
        if whole is None or whole.at(before) is None or whole.at(point) is None:
            return steps
        sequences = whole.sequences.name
        moved = before[sequences] != point[sequences] == whole.kept(before, point[whole.layout.name])
        return steps - moved


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

    def likely(self, keys: Sequence[Key]) -> list[Key]:
        """Those that can be taken seriously, in their order."""
        if not keys:
            return []
        chances = self.expectation.chances([dict(key) for key in keys])
        return [key for key, chance in zip(keys, chances, strict=True) if chance >= LIKELY]


def _changes(first: Mapping[str, FrozenValue], second: Mapping[str, FrozenValue]) -> int:
    return sum(first.get(name, ...) != second.get(name, ...) for name in first.keys() | second.keys())


def _mixture(first: Point, second: Point, rng: random.Random) -> Point:
    """Each setting from one of two parents."""
    merged = {**first, **second}
    return {name: rng.choice([parent[name] for parent in (first, second) if name in parent]) for name in merged}
