"""Points of a space as numbers that a model can compare."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from autotune.search.whole import WholeLimit
from autotune.space.config import FrozenValue
from autotune.space.layout import Layout

if TYPE_CHECKING:
    from autotune.space.space import Parameter, SearchSpace

Array = NDArray[np.float64]


class Features:
    """One column per ladder (its step, scaled to 0..1), choice (a code), layout (a code) and part of a layout.

    Parts let a model carry over what it learnt of tensor parallelism to another layout; the code keeps a layout that
    was never tried uncertain. Where layouts differ in their replicas, the sequences of one replica stand as those of
    the whole engine (`WholeLimit.share`): that is what makes requests wait.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._parameters = space.parameters
        self._whole = WholeLimit.of(space)
        self._columns: list[tuple[Parameter, str | None]] = []
        self._codes: dict[tuple[str, str | None], dict[FrozenValue, float]] = {}
        categorical: list[bool] = []
        for parameter in space.parameters:
            if len(parameter.values) < 2:
                continue
            parts: Sequence[str | None] = (
                [None, *(name for name in Layout().facts if _spread(parameter, name))]
                if parameter.kind == "layout"
                else [None]
            )
            for part in parts:
                self._columns.append((parameter, part))
                self._codes[parameter.name, part] = _codes(parameter, part)
                categorical.append(part is None and not parameter.ordered)
        self.categorical = np.asarray(categorical, dtype=np.bool_)
        self.names = tuple(parameter.name if part is None else part for parameter, part in self._columns)
        self.owners = tuple(parameter.name for parameter, _ in self._columns)

    @property
    def count(self) -> int:
        return len(self._columns)

    def encode(self, points: Sequence[Mapping[str, FrozenValue]]) -> Array:
        """One row per point. An inactive ladder stands in its middle, an inactive choice has a code of its own."""
        rows = np.empty((len(points), self.count))
        for column, (parameter, part) in enumerate(self._columns):
            if self._whole is not None and parameter is self._whole.sequences:
                shares = map(self._whole.share, points)
                rows[:, column] = [0.5 if share is None else share for share in shares]
                continue
            codes = self._codes[parameter.name, part]
            missing = -1.0 if self.categorical[column] else 0.5
            rows[:, column] = [
                codes.get(_typed(point[parameter.name]), missing) if parameter.name in point else missing
                for point in points
            ]
        return rows


def _typed(value: FrozenValue) -> FrozenValue:
    """Keys of a dict cannot tell `True` from `1`; text can."""
    return f"bool:{value}" if isinstance(value, bool) else value


def _spread(parameter: Parameter, part: str) -> bool:
    """Whether a part of the layouts differs and has a size; names (of an all-to-all backend) have none."""
    facts = {Layout.parse(str(value)).facts[part] for value in parameter.values}
    return len(facts) > 1 and not any(isinstance(fact, str) for fact in facts)


def _codes(parameter: Parameter, part: str | None) -> dict[FrozenValue, float]:
    if part is None:
        scale = len(parameter.values) - 1 if parameter.ordered else 1
        return {_typed(value): index / scale for index, value in enumerate(parameter.values)}
    sizes = {value: _size(Layout.parse(str(value)).facts[part]) for value in parameter.values}
    low, high = min(sizes.values()), max(sizes.values())
    return {value: (size - low) / (high - low) for value, size in sizes.items()}


def _size(fact: FrozenValue) -> float:
    return math.log2(fact) if isinstance(fact, int) and not isinstance(fact, bool) else float(bool(fact))
