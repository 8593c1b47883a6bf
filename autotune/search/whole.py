"""The limit that a load meets: sequences of one replica times replicas.

`max_num_seqs` is a replica's own, so a change of the layout changes what the whole engine takes in. A layout with one
replica and 256 sequences queues under a load that eight replicas with 256 each hold easily; that says nothing about
the layout. Layouts are compared at the same limit of the whole engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from autotune.space.config import FrozenValue
from autotune.space.layout import Layout

if TYPE_CHECKING:
    from autotune.space.space import Parameter, SearchSpace

SEQUENCES = "max_num_seqs"


@dataclass(frozen=True)
class WholeLimit:
    """The two parameters of a space that make up the limit.

    Attributes:
        layout: with different numbers of replicas.
        sequences: a ladder of one replica's limits, whole numbers above 0.
    """

    layout: Parameter
    sequences: Parameter

    @classmethod
    def of(cls, space: SearchSpace) -> WholeLimit | None:
        """None where the space changes no number of replicas, or not their limit."""
        layout = next((one for one in space.parameters if one.kind == "layout"), None)
        ladder = space.by_name.get(SEQUENCES)
        if layout is None or ladder is None or len(ladder.values) < 2 or not all(map(_counts, ladder.values)):
            return None
        return cls(layout, ladder) if len({_replicas(value) for value in layout.values}) > 1 else None

    def at(self, point: Mapping[str, FrozenValue]) -> int | None:
        """Sequences that the whole engine runs at once; None where the point leaves one of the two open."""
        layout, own = point.get(self.layout.name), point.get(self.sequences.name)
        return own * _replicas(layout) if isinstance(own, int) and layout is not None else None

    def share(self, point: Mapping[str, FrozenValue]) -> float | None:
        """Where the limit lies between the lowest and the highest of the space, by ratio: 0 to 1."""
        whole = self.at(point)
        if whole is None:
            return None
        low, high = self._ends
        return math.log(whole / low) / math.log(high / low)

    @cached_property
    def _ends(self) -> tuple[int, int]:
        """The lowest and the highest limit of the space."""
        replicas = [_replicas(value) for value in self.layout.values]
        steps = [value for value in self.sequences.values if isinstance(value, int)]
        return min(replicas) * min(steps), max(replicas) * max(steps)

    def kept(self, point: Mapping[str, FrozenValue], layout: FrozenValue) -> FrozenValue:
        """What a replica's limit has to be in another layout so that the engine's does not fall; its nearest step.

        With more replicas it stays: the engine takes in more, and a replica is changed in one way only.
        """
        own, before = point.get(self.sequences.name), point.get(self.layout.name)
        if not isinstance(own, int) or before is None or layout is None:
            return own
        fewer = _replicas(before) / _replicas(layout)
        return self.sequences.snap(own * fewer) if fewer > 1 else own

    def moved(self, point: Mapping[str, FrozenValue], layout: FrozenValue) -> dict[str, FrozenValue]:
        """A point in another layout, with the engine's limit kept."""
        return {**point, self.layout.name: layout, self.sequences.name: self.kept(point, layout)}


def _replicas(layout: FrozenValue) -> int:
    return Layout.parse(str(layout)).data


def _counts(value: FrozenValue) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
