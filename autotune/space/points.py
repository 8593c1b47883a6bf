"""Points of a search space one after the other: all of them, or a reproducible sample."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from autotune.space.config import FrozenValue
from autotune.space.space import Point, SearchSpace


def every_point(space: SearchSpace) -> Iterator[Point]:
    """All points in canonical form; one that differs in settings without effect comes again."""
    names = [parameter.name for parameter in space.parameters]
    for values in itertools.product(*(parameter.values for parameter in space.parameters)):
        yield space.canonical(dict(zip(names, values, strict=True)))


def drawn_points(space: SearchSpace, seed: int, count: int) -> Iterator[Point]:
    """`count` uniform draws in canonical form, the same for the same seed."""
    rng = random.Random(seed)
    for _ in range(count):
        drawn: dict[str, FrozenValue] = {parameter.name: rng.choice(parameter.values) for parameter in space.parameters}
        yield space.canonical(drawn)
