"""What of a search space can work at all: counted or sampled before anything is started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from autotune.preflight.study import StudyPreflight
from autotune.space.config import EngineConfig
from autotune.space.points import drawn_points, every_point
from autotune.space.space import SearchSpace

MOST_POINTS = 4000
"""Spaces up to this size are counted, larger ones sampled."""


@dataclass(frozen=True, slots=True)
class RefusedGroup:
    """Configurations that are refused for the same cause.

    Attributes:
        cause: class of the failure.
        count: how many of those looked at.
        example: the reason of the first one.
        advice: what helps.
    """

    cause: str
    count: int
    example: str
    advice: str


@dataclass(frozen=True)
class Survey:
    """A search space as the preflight sees it.

    Attributes:
        size: points of the space, conditions not counted in.
        looked_at: different configurations that were judged.
        sampled: they are a random sample.
        ruled_out: of them, those that the space's own relations rule out.
        refused: of the others, by cause, most first.
        admitted: the rest.
        restart_groups: processes that the admitted ones need at least, when live settings are changed live.
    """

    size: int
    looked_at: int
    sampled: bool
    ruled_out: int
    refused: tuple[RefusedGroup, ...]
    admitted: int
    restart_groups: int

    @property
    def refused_count(self) -> int:
        return sum(group.count for group in self.refused)

    def share(self, count: int) -> float:
        """Of what was looked at."""
        return count / self.looked_at if self.looked_at else 0.0


def survey(
    space: SearchSpace, base: EngineConfig, preflight: StudyPreflight, live: Collection[str], *, seed: int = 0
) -> Survey:
    """Judge every configuration of the space, or a sample of a large one.

    Args:
        space: what may be proposed.
        base: the fixed part of every configuration.
        preflight: judges.
        live: settings that a running engine can change.
        seed: of the sample.
    """
    sampled = space.size > MOST_POINTS
    seen: set[str] = set()
    groups: set[str] = set()
    causes: Counter[str] = Counter()
    words: dict[str, tuple[str, str]] = {}
    ruled_out = admitted = 0
    for point in drawn_points(space, seed, MOST_POINTS) if sampled else every_point(space):
        config = space.config(point, base)
        if config.hash in seen:
            continue
        seen.add(config.hash)
        if space.violations(point):
            ruled_out += 1
            continue
        outcome = preflight.refuse(config)
        if outcome is None:
            admitted += 1
            groups.add(config.restart_key(live))
            continue
        cause = outcome.cause.removeprefix("refused_")
        causes[cause] += 1
        words.setdefault(cause, (outcome.reason, outcome.advice[0].text if outcome.advice else ""))
    refused = tuple(RefusedGroup(cause, count, *words[cause]) for cause, count in causes.most_common())
    return Survey(space.size, len(seen), sampled, ruled_out, refused, admitted, len(groups))
