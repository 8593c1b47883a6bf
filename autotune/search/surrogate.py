"""A small Gaussian process for few, noisy measurements over mixed settings. Only NumPy.

The kernel has three parts: one term per setting (main effects, which explain most of a serving engine's speed), the
products of two such terms (Duvenaud et al. 2011, additive Gaussian processes), and a product over all settings for what
is left. All scales are fitted by gradient ascent on the log posterior, with priors that keep them sane at ten points.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

STEPS = 60
MANY_POINTS = 60
"""From so many points on, a third of the steps is enough: the start is closer and the data say more."""
MOST_POINTS = 110
"""A fit uses so many points at most; who has more passes the ones that matter."""

_VAGUE = 3.0
"""Variance that a vague row has beside its noise; measurements are scaled to a variance of 1."""
_PRIOR_DEVIATION = 1.0
_MAIN_RATE = 5.0
"""Inverse squared length scale of a main effect along a ladder (the ladder has length 1)."""
_CODE_RATE = 50.0
"""Two different choices say nothing about each other."""
_CODE_SHARE = 3.0
"""Prior variance of a choice's main effect over that of a ladder's."""
_MAIN_VARIANCE = 2.5
"""Prior variance of all main effects together; measurements are scaled to a variance of 1."""


@dataclass(frozen=True)
class _Terms:
    """The kernel between two sets of points, in its parts. `mains` has one weighted term per setting."""

    mains: Array
    total: Array
    pairs: Array
    product: Array


@dataclass(frozen=True)
class Relative:
    """Joint beliefs: anchors are `anchor_mean + factor @ z`; rows follow their anchors, the rest is their own.

    Attributes:
        mean: of every row.
        anchor_mean: of every anchor.
        factor: Cholesky factor of the anchors' covariance.
        weights: how much a row moves with each anchor. Shape: rows, anchors.
        own: standard deviation of what is left of a row once the anchors are known.
    """

    mean: Array
    anchor_mean: Array
    factor: Array
    weights: Array
    own: Array

    def draw(self, rng: np.random.Generator, boldness: float) -> tuple[Array, Array]:
        """One draw of rows and anchors."""
        moved = boldness * (self.factor @ rng.normal(size=len(self.anchor_mean)))
        return self.mean + self.weights @ moved + boldness * self.own * rng.normal(), self.anchor_mean + moved


class Surrogate:
    """A fitted model: `predict` gives mean and standard deviation of the noise-free value."""

    def __init__(
        self,
        rows: Array,
        targets: Array,
        categorical: Mask,
        *,
        noise: float = 0.03,
        vague: Mask | None = None,
    ) -> None:
        """Fit.

        Args:
            rows: encoded points, one per row.
            targets: measured values, on a scale where effects add (logarithms).
            categorical: which columns hold codes instead of positions.
            noise: standard deviation of a measurement to begin with, on the scale of `targets`.
            vague: rows whose target says little, such as one that was cut off.
        """
        self._rows = rows
        self._vague = _VAGUE * (np.zeros(len(rows)) if vague is None else vague.astype(np.float64))
        self._categorical = categorical
        self._columns = rows.shape[1]
        self._mean = float(np.mean(targets))
        self._spread = max(float(np.std(targets)), 1e-6)
        self._targets = (targets - self._mean) / self._spread
        self._distances = _distances(rows, rows, categorical)
        self._decays = self._decay(self._distances)
        prior = self._prior(noise / self._spread)
        self._scales = self._fit(prior) if len(targets) > 2 else prior
        self._condition()

    def assuming(self, rows: Array, worse: float) -> Surrogate:
        """The same scales, told of more points: each at its expected value plus `worse` standard deviations."""
        mean, deviation = self.predict(rows)
        model = copy.copy(self)
        model._rows = np.vstack([self._rows, rows])
        model._targets = np.concatenate([self._targets, (mean + worse * deviation - self._mean) / self._spread])
        model._vague = np.concatenate([self._vague, np.zeros(len(rows))])
        model._distances = _distances(model._rows, model._rows, self._categorical)
        model._decays = model._decay(model._distances)
        model._condition()
        return model

    def _condition(self) -> None:
        kernel = self._noisy(self._kernel(self._terms(self._scales, self._distances, self._decays)), self._scales)
        self._inverse_factor = np.linalg.inv(np.linalg.cholesky(kernel))
        self._alpha = self._inverse_factor.T @ (self._inverse_factor @ self._targets)

    def predict(self, rows: Array) -> tuple[Array, Array]:
        """Mean and standard deviation at `rows`, on the scale of the targets, without measurement noise."""
        distances = _distances(rows, self._rows, self._categorical)
        cross = self._kernel(self._terms(self._scales, distances, self._decay(distances)))
        explained = self._inverse_factor @ cross.T
        variance = np.maximum(self._own_variance() - np.einsum("ij,ij->j", explained, explained), 1e-8)
        return self._mean + self._spread * (cross @ self._alpha), self._spread * np.sqrt(variance)

    def relative(self, rows: Array, anchors: Array) -> Relative:
        """Beliefs about `rows` as they hang together with those about `anchors`."""
        to_rows, to_anchors = self._between(self._rows, rows), self._between(self._rows, anchors)
        explained, known = self._inverse_factor @ to_rows, self._inverse_factor @ to_anchors
        between = self._between(rows, anchors) - explained.T @ known
        among = self._between(anchors, anchors) - known.T @ known
        among[np.diag_indices(len(among))] += 1e-6
        weights = np.linalg.solve(among, between.T).T
        variance = self._own_variance() - np.einsum("ij,ij->j", explained, explained)
        own = np.sqrt(np.maximum(variance - np.einsum("ij,ij->i", weights, between), 0.0))
        return Relative(
            self._mean + self._spread * (self._alpha @ to_rows),
            self._mean + self._spread * (self._alpha @ to_anchors),
            np.asarray(self._spread * np.linalg.cholesky(among), dtype=np.float64),
            np.asarray(weights, dtype=np.float64),
            self._spread * own,
        )

    def _between(self, first: Array, second: Array) -> Array:
        distances = _distances(first, second, self._categorical)
        return self._kernel(self._terms(self._scales, distances, self._decay(distances)))

    @property
    def noise(self) -> float:
        """Fitted standard deviation of one measurement."""
        return self._spread * float(np.exp(0.5 * self._scales[-1]))

    def _prior(self, noise: float) -> Array:
        """Logarithms of: product rates, main variances, product variance, pair weight, noise variance."""
        rates = np.where(self._categorical, np.log(0.3), np.log(0.5))
        # A layout or a number format decides more than a step on a ladder, and must be tried to be known.
        share = np.where(self._categorical, _CODE_SHARE, 1.0)
        mains = np.log(_MAIN_VARIANCE * share / share.sum())
        return np.concatenate([rates, mains, np.log([0.5, 2.0, max(noise, 0.02) ** 2])])

    def _decay(self, distances: Array) -> Array:
        rates = np.where(self._categorical, _CODE_RATE, _MAIN_RATE)
        return np.asarray(np.exp(-rates[:, None, None] * distances))

    def _terms(self, scales: Array, distances: Array, decays: Array) -> _Terms:
        count = self._columns
        mains = np.exp(scales[count : 2 * count])[:, None, None] * decays
        total = mains.sum(axis=0)
        # Newton's identity: the sum over pairs from the sum and the sum of squares.
        pairs = np.exp(scales[-2]) * 0.5 * (total**2 - np.einsum("dij,dij->ij", mains, mains))
        product = np.exp(scales[-3] - np.tensordot(np.exp(scales[:count]), distances, axes=1))
        return _Terms(mains, total, pairs, product)

    def _kernel(self, terms: _Terms) -> Array:
        return np.asarray(terms.total + terms.pairs + terms.product)

    def _own_variance(self) -> float:
        mains = np.exp(self._scales[self._columns : 2 * self._columns])
        pairs = np.exp(self._scales[-2]) * 0.5 * (mains.sum() ** 2 - (mains**2).sum())
        return float(mains.sum() + pairs + np.exp(self._scales[-3]))

    def _noisy(self, kernel: Array, scales: Array) -> Array:
        kernel[np.diag_indices(len(kernel))] += np.exp(scales[-1]) + 1e-6 + self._vague
        return kernel

    def _fit(self, prior: Array) -> Array:
        """Ascend the log posterior with sign-based steps (Rprop): robust, and needs no line search."""
        half = _Half.of(self._distances, self._decays)
        scales = prior.copy()
        step = np.full(len(prior), 0.2)
        before = np.zeros(len(prior))
        best, best_scales = -np.inf, scales
        for _ in range(STEPS if len(self._targets) <= MANY_POINTS else STEPS // 3):
            value, gradient = self._posterior(scales, prior, half)
            if value > best:
                best, best_scales = value, scales
            agreement = gradient * before
            step = np.clip(np.where(agreement > 0, step * 1.2, np.where(agreement < 0, step * 0.5, step)), 1e-3, 0.6)
            before = np.where(agreement < 0, 0.0, gradient)
            scales = np.clip(scales + np.sign(before) * step, prior - 5, prior + 4)
        return best_scales

    def _posterior(self, scales: Array, prior: Array, half: _Half) -> tuple[float, Array]:
        """Log posterior of the scales and its gradient (Rasmussen and Williams 2006, equation 5.9)."""
        count, pair_weight, noise = self._columns, np.exp(scales[-2]), np.exp(scales[-1])
        rates = np.exp(scales[:count])
        mains = np.exp(scales[count : 2 * count])[:, None] * half.decays
        squares = mains * mains
        total = mains.sum(axis=0)
        pairs = pair_weight * 0.5 * (total**2 - squares.sum(axis=0))
        product = np.exp(scales[-3] - rates @ half.distances)
        kernel = half.square(total + pairs + product)
        kernel[np.diag_indices(len(kernel))] += noise + 1e-6 + self._vague
        factor = np.linalg.cholesky(kernel)
        inverse_factor = np.linalg.inv(factor)
        inverse = inverse_factor.T @ inverse_factor
        alpha = inverse @ self._targets
        value = -0.5 * float(self._targets @ alpha) - float(np.log(np.diag(factor)).sum())
        pull = half.weights * (0.5 * (np.outer(alpha, alpha) - inverse))[half.rows, half.columns]
        by_rate = -rates * (half.distances @ (pull * product))
        by_main = mains @ (pull * (1 + pair_weight * total)) - pair_weight * (squares @ pull)
        trace = 0.5 * (float(alpha @ alpha) - float(np.trace(inverse)))
        shared = [pull @ product, pull @ pairs, noise * trace]
        away = (scales - prior) / _PRIOR_DEVIATION**2
        value -= 0.5 * float(away @ (scales - prior))
        return value, np.concatenate([by_rate, by_main, shared]) - away


@dataclass(frozen=True)
class _Half:
    """One half of symmetric matrices, flat, because a fit looks at them often. Off-diagonal entries count twice."""

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    weights: Array
    distances: Array
    decays: Array

    @classmethod
    def of(cls, distances: Array, decays: Array) -> _Half:
        rows, columns = np.triu_indices(distances.shape[1])
        return cls(
            rows, columns, np.where(rows == columns, 1.0, 2.0), distances[:, rows, columns], decays[:, rows, columns]
        )

    def square(self, values: Array) -> Array:
        """The whole matrix."""
        size = self.rows[-1] + 1
        full = np.empty((size, size))
        full[self.rows, self.columns] = values
        full[self.columns, self.rows] = values
        return full


def _distances(first: Array, second: Array, categorical: Mask) -> Array:
    """Per column: squared difference of positions, or 1 for different codes. Shape: columns, first, second."""
    difference = first.T[:, :, None] - second.T[:, None, :]
    squared = difference**2
    squared[categorical] = difference[categorical] != 0
    return squared
