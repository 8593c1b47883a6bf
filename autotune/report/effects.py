"""Which settings mattered, and by how much: an additive model of the logarithm of an objective.

Settings of a search are confounded: the sampler prefers some values together. So the effect of each value is fitted
with all other settings in the model: log(objective) = mean + sum over settings of the effect of its value. The fit is
a ridge regression on indicator columns (strength `RIDGE`), so that a value that was seen once is pulled towards no
effect. The effects of a setting average to zero over the trials. The importance of a setting is the variance of its
fitted effects over the trials, divided by the total variance; what the additive model cannot explain (interactions,
noise) is nobody's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.outcome import TrialRecord
from autotune.report.values import EffectView, SettingView
from autotune.report.wording import value_text
from autotune.search.objectives import Objectives, searched
from autotune.space.config import EngineConfig, FrozenValue
from autotune.space.defaults import without_spelt_out

Array = NDArray[np.float64]
RIDGE = 1.0
"""As if every value had been seen once more with no effect."""
FEWEST = 6
"""Measured trials below which nothing is said about single settings."""
MOST_VALUES = 24
"""A setting with more values than this is no choice; it is left out."""


@dataclass(frozen=True)
class Effects:
    """Settings by falling importance in the first objective, and the share explained per objective."""

    settings: tuple[SettingView, ...] = ()
    fits: tuple[float, ...] = ()


@dataclass(frozen=True)
class _Axis:
    name: str
    values: tuple[FrozenValue, ...]
    index: NDArray[np.int64]
    """Which value each trial had."""


def effects_of(history: Sequence[TrialRecord], objectives: Objectives) -> Effects:
    """Importance and effects of every setting that was varied; empty with fewer than `FEWEST` measured trials."""
    records = [record for record in searched(history) if objectives.values(record) is not None]
    if len(records) < FEWEST:
        return Effects()
    axes = _axes([without_spelt_out(record.config) for record in records])
    if not axes:
        return Effects()
    losses = np.asarray([objectives.model_losses(objectives.values(one) or ()) for one in records], dtype=np.float64)
    fits = [_fit(axes, -losses[:, index]) for index in range(losses.shape[1])]
    settings = [
        SettingView(axis.name, tuple(fit.importance[place] for fit in fits), tuple(fit.effects[place] for fit in fits))
        for place, axis in enumerate(axes)
    ]
    settings.sort(key=lambda one: -one.importance[0])
    return Effects(tuple(settings), tuple(fit.explained for fit in fits))


def _axes(configs: Sequence[EngineConfig]) -> list[_Axis]:
    names = sorted({name for config in configs for name, _ in (*config.args, *_env(config))})
    found = []
    for name in names:
        column = [dict((*config.args, *_env(config))).get(name) for config in configs]
        values = sorted(set(column), key=_order)
        if 2 <= len(values) <= min(MOST_VALUES, len(configs) - 1):
            index = np.asarray([values.index(value) for value in column], dtype=np.int64)
            found.append(_Axis(name, tuple(values), index))
    return found


def _env(config: EngineConfig) -> tuple[tuple[str, FrozenValue], ...]:
    return tuple((f"env.{name}", value) for name, value in config.env)


def _order(value: FrozenValue) -> tuple[int, float, str]:
    """Numbers by size, then texts; `None`, which is the default, first."""
    if value is None:
        return (0, 0.0, "")
    if isinstance(value, int | float):
        return (1, float(value), "")
    return (2, 0.0, str(value))


@dataclass(frozen=True)
class _Fit:
    importance: tuple[float, ...]
    effects: tuple[tuple[EffectView, ...], ...]
    explained: float


def _fit(axes: Sequence[_Axis], gains: Array) -> _Fit:
    """Ridge regression of log-gains (above the mean is better) on indicators of the values."""
    count = len(gains)
    blocks = [np.eye(len(axis.values))[axis.index] for axis in axes]
    design = np.hstack(blocks)
    centre = design.mean(axis=0)
    target = gains - gains.mean()
    penalised = (design - centre).T @ (design - centre) + RIDGE * np.eye(design.shape[1])
    inverse = np.linalg.inv(penalised)
    weights = inverse @ (design - centre).T @ target
    residual = target - (design - centre) @ weights
    freedom = max(count - 1.0 - float(np.trace(inverse @ (penalised - RIDGE * np.eye(len(weights))))), 1.0)
    noise = float(residual @ residual) / freedom
    total = float(target @ target)
    explained = 0.0 if total <= 0 else max(0.0, 1 - noise / (total / max(count - 1, 1)))
    importance, effects = [], []
    start = 0
    for axis, block in zip(axes, blocks, strict=True):
        part = slice(start, start + block.shape[1])
        start += block.shape[1]
        own = weights[part] - float(block.mean(axis=0) @ weights[part])
        contribution = block @ own
        importance.append(min(1.0, float(contribution @ contribution) / total) if total > 0 else 0.0)
        spread = np.sqrt(noise * np.diag(inverse)[part])
        effects.append(_rows(axis, own, spread))
    return _Fit(tuple(importance), tuple(effects), explained)


def _rows(axis: _Axis, own: Array, spread: Array) -> tuple[EffectView, ...]:
    counts = np.bincount(axis.index, minlength=len(axis.values))
    return tuple(
        EffectView(
            value_text(value),
            math.exp(float(own[place])),
            math.exp(float(own[place] - 1.96 * spread[place])),
            math.exp(float(own[place] + 1.96 * spread[place])),
            int(counts[place]),
        )
        for place, value in enumerate(axis.values)
    )
