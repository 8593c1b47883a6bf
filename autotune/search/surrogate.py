"""A small Gaussian process for few, noisy measurements over mixed settings. Only NumPy.

The kernel is a sum of one term per setting (main effects, which explain most of a serving engine's speed) and a product
over all settings (interactions). All scales are fitted by gradient ascent on the log posterior, with priors that keep
them sane at ten points.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

STEPS = 60
MOST_POINTS = 160
"""A fit uses so many points at most; who has more passes the ones that matter."""
_PRIOR_SPREAD = 1.0
_MAIN_NUMERIC = 2.5
"""Inverse squared length scale of a main effect along a ladder (the ladder has length 1)."""


@dataclass(frozen=True)
class _Scales:
    """Logarithms of: product inverse length scales, main-effect variances, product variance, noise variance."""

    theta: Array
    main: Array
    product: float
    noise: float

    def flat(self) -> Array:
        return np.concatenate([self.theta, self.main, [self.product, self.noise]])

    @classmethod
    def of(cls, flat: Array) -> _Scales:
        count = (len(flat) - 2) // 2
        return cls(flat[:count], flat[count : 2 * count], float(flat[-2]), float(flat[-1]))


class Surrogate:
    """A fitted model: `predict` gives mean and standard deviation of the noise-free value."""

    def __init__(self, rows: Array, targets: Array, categorical: NDArray[np.bool_], *, noise: float = 0.03) -> None:
        """Fit.

        Args:
            rows: encoded points, one per row.
            targets: measured values, on a scale where effects add (logarithms).
            categorical: which columns hold codes instead of positions.
            noise: standard deviation of a measurement to begin with, on the scale of `targets`.
        """
        self._rows = rows
        self._categorical = categorical
        self._mean = float(np.mean(targets))
        self._spread = max(float(np.std(targets)), 1e-6)
        self._targets = (targets - self._mean) / self._spread
        count = rows.shape[1]
        self._prior = _Scales(
            theta=np.where(categorical, np.log(0.6), np.log(1.0)),
            main=np.full(count, np.log(0.6 / max(count, 1))),
            product=float(np.log(0.5)),
            noise=float(2 * np.log(max(noise / self._spread, 0.02))),
        )
        self._distances = _distances(rows, rows, categorical)
        self._main_kernels = self._main_terms(self._distances)
        self._scales = self._fit() if len(targets) > 2 else self._prior
        self._factorise()

    def predict(self, rows: Array) -> tuple[Array, Array]:
        """Mean and standard deviation at `rows`, on the scale of the targets, without measurement noise."""
        distances = _distances(rows, self._rows, self._categorical)
        cross = self._kernel(distances, self._main_terms(distances), self._scales)
        mean = cross @ self._alpha
        total = float(np.exp(self._scales.main).sum() + np.exp(self._scales.product))
        solved = np.linalg.solve(self._factor, cross.T)
        variance = np.maximum(total - np.einsum("ij,ij->j", solved, solved), 1e-8)
        return self._mean + self._spread * mean, self._spread * np.sqrt(variance)

    @property
    def noise(self) -> float:
        """Fitted standard deviation of one measurement."""
        return self._spread * float(np.exp(0.5 * self._scales.noise))

    def _main_terms(self, distances: Array) -> Array:
        rates = np.where(self._categorical, 50.0, _MAIN_NUMERIC)
        return np.asarray(np.exp(-rates[:, None, None] * distances))

    def _kernel(self, distances: Array, main: Array, scales: _Scales) -> Array:
        product = np.exp(scales.product - np.tensordot(np.exp(scales.theta), distances, axes=1))
        return np.asarray(product + np.tensordot(np.exp(scales.main), main, axes=1))

    def _fit(self) -> _Scales:
        """Ascend the log posterior with sign-based steps (Rprop): robust, and needs no line search."""
        prior = self._prior.flat()
        flat = prior.copy()
        step = np.full(len(flat), 0.2)
        before = np.zeros(len(flat))
        best, best_flat = -np.inf, flat
        for _ in range(STEPS if len(self._targets) <= 80 else STEPS // 3):
            value, gradient = self._posterior(flat, prior)
            if value > best:
                best, best_flat = value, flat
            agreement = gradient * before
            step = np.clip(np.where(agreement > 0, step * 1.2, np.where(agreement < 0, step * 0.5, step)), 1e-3, 0.6)
            before = np.where(agreement < 0, 0.0, gradient)
            flat = np.clip(flat + np.sign(before) * step, prior - 5, prior + 4)
        return _Scales.of(best_flat)

    def _posterior(self, flat: Array, prior: Array) -> tuple[float, Array]:
        """Log posterior of the scales and its gradient (Rasmussen and Williams 2006, equation 5.9)."""
        scales = _Scales.of(flat)
        count = len(self._targets)
        theta = np.exp(scales.theta)
        product = np.exp(scales.product - np.tensordot(theta, self._distances, axes=1))
        main = np.exp(scales.main)
        kernel = product + np.tensordot(main, self._main_kernels, axes=1)
        noise = np.exp(scales.noise)
        kernel[np.diag_indices(count)] += noise + 1e-6
        factor = np.linalg.cholesky(kernel)
        inverse_factor = np.linalg.inv(factor)
        inverse = inverse_factor.T @ inverse_factor
        alpha = inverse @ self._targets
        value = -0.5 * float(self._targets @ alpha) - float(np.log(np.diag(factor)).sum())
        pull = 0.5 * (np.outer(alpha, alpha) - inverse)
        by_theta = -theta * np.einsum("ij,dij->d", pull * product, self._distances, optimize=False)
        by_main = main * np.einsum("ij,dij->d", pull, self._main_kernels, optimize=False)
        gradient = np.concatenate([by_theta, by_main, [float((pull * product).sum()), float(noise * np.trace(pull))]])
        away = flat - prior
        value -= 0.5 * float(away @ away) / _PRIOR_SPREAD**2
        return value, gradient - away / _PRIOR_SPREAD**2

    def _factorise(self) -> None:
        kernel = self._kernel(self._distances, self._main_kernels, self._scales)
        kernel[np.diag_indices(len(self._targets))] += np.exp(self._scales.noise) + 1e-6
        self._factor = np.linalg.cholesky(kernel)
        self._alpha = np.linalg.solve(self._factor.T, np.linalg.solve(self._factor, self._targets))


def _distances(first: Array, second: Array, categorical: NDArray[np.bool_]) -> Array:
    """Per column: squared difference of positions, or 1 for different codes. Shape: columns, first, second."""
    difference = first.T[:, :, None] - second.T[:, None, :]
    return np.where(categorical[:, None, None], (difference != 0).astype(np.float64), difference**2)
