"""How much a candidate is expected to add, from models of what was measured so far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.outcome import Measured, TrialRecord
from autotune.search.features import Features
from autotune.search.front import front_of, losses_of
from autotune.search.objectives import Objectives
from autotune.search.surrogate import MOST_POINTS, Surrogate
from autotune.space.config import FrozenValue

Array = NDArray[np.float64]

DIRECTIONS = 96
DRAWS = 24
UNSEEN = 0.04
"""Gains up to so much, as a logarithm, do not count: noise hides them, and a plateau is full of them."""
GROWTH = 1.02
"""A hypervolume that has grown by this factor has grown."""
_erf = np.vectorize(math.erf, otypes=[float])


@dataclass(frozen=True)
class Sample:
    """A record at a point of the space."""

    record: TrialRecord
    point: Mapping[str, FrozenValue]


class Expectation:
    """Models of every objective and every limit, fitted to the samples of a study.

    Points that are being measured are taken for slightly bad: each objective stands one standard deviation worse than
    expected (a pessimistic liar). So a second proposal goes elsewhere, and settings that the pending points share with
    good ones keep their name. The models' scales are fitted to measurements alone.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        features: Features,
        objectives: Objectives,
        seed: int,
        *,
        pending: Sequence[Mapping[str, FrozenValue]] = (),
    ) -> None:
        self._features = features
        self._objectives = objectives
        kept = _most_telling(samples, objectives)
        measured = [one for one in kept if objectives.values(one.record) is not None]
        self._rng = np.random.default_rng(seed)
        front = front_of([one.record for one in measured], objectives)
        self._losses, cut = _clipped(
            losses_of([one.record for one in measured], objectives), losses_of(front, objectives)
        )
        rows = features.encode([one.point for one in measured])
        self._models = [
            Surrogate(rows, self._losses[:, column], features.categorical, vague=cut[:, column])
            for column in range(self._losses.shape[1])
        ]
        self._limits = self._fit_limits(kept)
        self._good = np.asarray([objectives.feasible(one.record) for one in measured])
        numbers = {record.number for record in front}
        self._anchors = features.encode([one.point for one in measured if one.record.number in numbers])
        self._front = self._smooth()
        self._reference = self._make_reference()
        if pending:
            encoded = features.encode(pending)
            self._models = [model.assuming(encoded, 1.0) for model in self._models]
            self._limits = [model.assuming(encoded, 0.0) for model in self._limits]

    def _smooth(self) -> Array:
        """The front without the luck of its measurements: what the models say of its members."""
        if not len(self._anchors):
            return np.empty((0, len(self._models)))
        return np.column_stack([model.predict(self._anchors)[0] for model in self._models])

    def _fit_limits(self, kept: Sequence[Sample]) -> list[Surrogate]:
        """One model per limit that was ever broken. SLOs are modelled by size, the gate and crashes by yes or no."""
        rows = np.asarray([self._objectives.constraints(one.record) for one in kept]).reshape(len(kept), -1)
        encoded = self._features.encode([one.point for one in kept])
        ran = np.asarray([isinstance(one.record.outcome, Measured) for one in kept])
        models: list[Surrogate] = []
        last = rows.shape[1] - 1
        for column in range(rows.shape[1]):
            use = np.ones(len(kept), dtype=np.bool_) if column == last else ran
            values = rows[use, column]
            if len(values) == 0 or not (values > 0).any():
                continue
            targets = np.where(values > 0, 1.0, -1.0) if column >= last - 1 else np.clip(values, -1.5, 1.5)
            models.append(Surrogate(encoded[use], targets, self._features.categorical, noise=0.2))
        return models

    def _make_reference(self) -> Array:
        """Worse than the front's ends by half of the front's extent (at least by a factor of 1.3)."""
        rows = self._front if len(self._front) else self._losses
        worst, best = rows.max(axis=0), rows.min(axis=0)
        return np.asarray(worst + np.maximum(0.5 * (worst - best), math.log(1.3)))

    def feasible(self, encoded: Array) -> Array:
        """Chance that every limit holds."""
        chance = np.ones(len(encoded))
        for model in self._limits:
            mean, deviation = model.predict(encoded)
            chance *= 0.5 * (1 - _erf(mean / np.sqrt(2 * (deviation**2 + 0.05))))
        return chance

    def chances(self, points: Sequence[Mapping[str, FrozenValue]]) -> Array:
        """Chance of every point that every limit holds there."""
        return self.feasible(self._features.encode(points))

    def gain(self, points: Sequence[Mapping[str, FrozenValue]], *, boldness: float = 1.0) -> tuple[Array, Array]:
        """Expected gain of the feasible hypervolume per candidate, and its chance to be feasible.

        The hypervolume is the mean over directions of the farthest point along each (Zhang and Golovin 2020); that
        costs the same in any number of objectives. Candidates are judged one by one, each drawn together with the
        front: a neighbour of the best configuration whose value is uncertain only because the best one's is has
        nothing to gain (Daulton et al. 2021, noisy expected hypervolume improvement).
        """
        encoded = self._features.encode(points)
        chance = self.feasible(encoded)
        count = len(self._models)
        beliefs = [model.relative(encoded, self._anchors) for model in self._models]
        directions = _directions(self._rng, count)
        total = np.zeros(len(points))
        for _ in range(DRAWS):
            pairs = [one.draw(self._rng, boldness) for one in beliefs]
            lengths = self._lengths(np.column_stack([rows for rows, _ in pairs]) + UNSEEN, directions)
            reached = self._lengths(np.column_stack([front for _, front in pairs]), directions)
            best = reached.max(axis=0) if len(reached) else np.zeros(DIRECTIONS)
            total += np.maximum(lengths**count - best**count, 0.0).mean(axis=1)
        return total / DRAWS * chance, chance

    @property
    def stagnant(self) -> int:
        """Samples that were measured since the feasible hypervolume last grew."""
        directions = _directions(np.random.default_rng(0), len(self._models))
        reached = self._lengths(self._losses, directions) * self._good[:, None]
        volumes = (np.maximum.accumulate(reached, axis=0) ** len(self._models)).mean(axis=1)
        last, when = 0.0, 0
        for index, volume in enumerate(volumes):
            if volume > GROWTH * last:
                last, when = float(volume), index
        return len(volumes) - 1 - when

    def _lengths(self, losses: Array, directions: Array) -> Array:
        """How far each row reaches from the reference along each direction. Shape: rows, directions."""
        room = np.maximum(self._reference - losses, 0.0)
        lengths = np.full((len(losses), len(directions)), np.inf)
        for column in range(losses.shape[1]):
            np.minimum(lengths, room[:, column, None] / directions[None, :, column], out=lengths)
        return lengths


def _directions(rng: np.random.Generator, count: int) -> Array:
    """Directions of length 1 towards better values of every objective. Shape: directions, objectives."""
    drawn = np.abs(rng.normal(size=(DIRECTIONS, count)))
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))


def _clipped(losses: Array, front: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Losses with everything hopeless made equal: a model must tell good from better, not bad from terrible.

    Also which were cut off: they say that something in a configuration is hopeless, often a queue, and not what.

    The cap is a factor of 1.6 beyond the front's worst end and at least a factor of e beyond the best value.
    """
    best = losses.min(axis=0)
    ends = front.max(axis=0) + 0.5 if len(front) else best + 1.5
    most = np.maximum(ends, best + 1.0)
    return np.minimum(losses, most), losses > most


def _most_telling(samples: Sequence[Sample], objectives: Objectives) -> list[Sample]:
    """All of them, or the best two thirds and the latest third of what a model can hold."""
    if len(samples) <= MOST_POINTS:
        return list(samples)
    ranked = sorted(range(len(samples)), key=lambda index: objectives.rank(samples[index].record))
    chosen = set(ranked[: 2 * MOST_POINTS // 3])
    for index in range(len(samples) - 1, -1, -1):
        if len(chosen) >= MOST_POINTS:
            break
        chosen.add(index)
    return [samples[index] for index in sorted(chosen)]
