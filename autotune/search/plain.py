"""Strategies without a model: random draws and a grid."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from autotune.outcome import Proposal
from autotune.search.proposer import Setting, Situation
from autotune.search.screen import Point

GRID_LOOKS = 20_000
"""Grid points looked at in one call at most, so that a space full of refusals still answers."""


class RandomStrategy:
    """Uniform draws from what the screen admits."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def suggest(self, situation: Situation) -> Proposal | None:
        return self._setting.random_proposal(situation)


class GridStrategy:
    """Every point of the space, coarse to fine: ends and middle of each ladder first."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def suggest(self, situation: Situation) -> Proposal | None:
        for point in itertools.islice(self._points(), GRID_LOOKS):
            candidate = self._setting.screen.candidate(point, situation.tried)
            if candidate.admitted:
                return candidate.proposal("sampler", "grid")
        return None

    def _points(self) -> Iterator[Point]:
        parameters = self._setting.screen.space.parameters
        names = [parameter.name for parameter in parameters]
        sizes = [len(parameter.values) for parameter in parameters]
        finest = max(sizes, default=1)
        steps = 2
        while True:
            axes = [
                [parameter.values[index] for index in _spread(size, steps if parameter.ordered else size)]
                for parameter, size in zip(parameters, sizes, strict=True)
            ]
            for values in itertools.product(*axes):
                yield dict(zip(names, values, strict=True))
            if steps >= finest:
                return
            steps = steps * 2 - 1


def _spread(size: int, steps: int) -> list[int]:
    """At most `steps` indices from 0 to size-1, evenly spread, both ends included."""
    if steps >= size:
        return list(range(size))
    return sorted({round(index * (size - 1) / (steps - 1)) for index in range(steps)})
