"""What became of every configuration of a space: measured, failed, refused before a start, or not tried."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import TypeAdapter

from autotune.errors import StoreError
from autotune.outcome import Infeasible, TrialRecord
from autotune.search.screen import Tried
from autotune.space.config import EngineConfig, FrozenValue
from autotune.space.points import drawn_points, every_point
from autotune.space.space import Point, SearchSpace

ACCOUNT = ("account", "space")
"""Kind and key of the document in the store."""
MOST_POINTS = 4000
"""Spaces up to this size are counted, larger ones sampled."""
MOST_LISTED = 1000
"""Refused configurations that are kept one by one; of further ones only the count."""


@dataclass(frozen=True, slots=True)
class RefusedPoint:
    """A configuration that was never started.

    Attributes:
        point: values of the space's parameters.
        cause: class of the failure that was avoided, `refused_...`, or `known_to_fail`.
        reason: one sentence.
        advice: what helps; empty where nobody knows.
    """

    point: tuple[tuple[str, FrozenValue], ...]
    cause: str
    reason: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class SpaceAccount:
    """Every configuration of a space under exactly one head.

    Attributes:
        size: points of the space, conditions not counted in.
        looked_at: different configurations that were judged; the sum of all heads below.
        sampled: they are a random sample of a large space.
        measured, infeasible, broken: what the latest trial of a configuration ended with.
        causes: of the configurations that were refused before a start, by cause, most first.
        ruled_out: by the space's own relations.
        untried: would be started, and was not.
        refused: the first of those that were refused, one by one.
    """

    size: int
    looked_at: int
    sampled: bool
    measured: int
    infeasible: int
    broken: int
    causes: tuple[tuple[str, int], ...]
    ruled_out: int
    untried: int
    refused: tuple[RefusedPoint, ...]

    @property
    def refused_count(self) -> int:
        """All that were refused before a start."""
        return sum(count for _, count in self.causes)

    @property
    def sentence(self) -> str:
        """The account in one sentence; heads without a configuration are left out."""
        heads = [
            (self.measured, "measured"), (self.infeasible, "could not serve"), (self.broken, "broke"),
            (self.refused_count, "refused before a start"), (self.ruled_out, "against the space's relations"),
            (self.untried, "not tried"),
        ]  # fmt: skip
        what = f"a sample of {self.looked_at:,}" if self.sampled else f"{self.looked_at:,}"
        return f"Of {what} configurations of the space: " + ", ".join(f"{n:,} {word}" for n, word in heads if n) + "."

    def example(self, cause: str) -> RefusedPoint:
        """The first configuration that was refused for a cause."""
        return next(one for one in self.refused if one.cause == cause)

    def to_json(self) -> str:
        """For the store."""
        return _ACCOUNT.dump_json(self).decode()

    @staticmethod
    def from_json(text: str) -> SpaceAccount:
        """The inverse of `to_json`."""
        return _ACCOUNT.validate_json(text)


_ACCOUNT: TypeAdapter[SpaceAccount] = TypeAdapter(SpaceAccount)


def account_of(
    space: SearchSpace,
    base: EngineConfig,
    refuse: Callable[[EngineConfig], Infeasible | None],
    history: Sequence[TrialRecord],
    *,
    seed: int = 0,
) -> SpaceAccount:
    """Put every configuration of the space, or of a sample of a large one, under its head.

    Args:
        space: what may be proposed.
        base: the fixed part of every configuration.
        refuse: the preflight.
        history: all records of the study.
        seed: of the sample.
    """
    latest = {record.config.hash: record.outcome.kind for record in history}
    tried = Tried.of(history)
    heads: Counter[str] = Counter()
    causes: Counter[str] = Counter()
    first: dict[str, RefusedPoint] = {}
    listed: list[RefusedPoint] = []
    seen: set[str] = set()
    for point in drawn_points(space, seed, MOST_POINTS) if space.size > MOST_POINTS else every_point(space):
        config = space.config(point, base)
        if config.hash in seen:
            continue
        seen.add(config.hash)
        refused = None
        if config.hash in latest:
            heads[latest[config.hash]] += 1
        elif space.violations(point):
            heads["ruled_out"] += 1
        elif (refused := _refusal(point, config, tried, refuse)) is None:
            heads["untried"] += 1
        else:
            causes[refused.cause] += 1
            first.setdefault(refused.cause, refused)
            listed.append(refused)
    rest = [one for one in listed if one is not first[one.cause]]
    return SpaceAccount(
        size=space.size,
        looked_at=len(seen),
        sampled=space.size > MOST_POINTS,
        measured=heads["measured"],
        infeasible=heads["infeasible"],
        broken=heads["broken"],
        causes=tuple(causes.most_common()),
        ruled_out=heads["ruled_out"],
        untried=heads["untried"],
        refused=(*first.values(), *rest)[:MOST_LISTED],
    )


class Kept(Protocol):
    """The part of the store that an account needs."""

    def history(self) -> Sequence[TrialRecord]: ...

    def put(self, kind: str, key: str, body: str) -> None: ...


def keep_account(
    store: Kept,
    space: SearchSpace,
    baseline: EngineConfig,
    refuse: Callable[[EngineConfig], Infeasible | None],
    seed: int,
) -> None:
    """Count the space of a study and keep the result. A store that takes no more is left alone: the records say it all.

    Args:
        store: of the study.
        space: what may be proposed.
        baseline: complete; what the space does not set is taken from it.
        refuse: the preflight, with all that it has learnt.
        seed: of the sample of a large space.
    """
    fixed = tuple(item for item in baseline.args if item[0] not in space.by_name)
    with contextlib.suppress(StoreError):
        made = account_of(space, EngineConfig(fixed, baseline.env), refuse, store.history(), seed=seed)
        store.put(*ACCOUNT, made.to_json())


def _refusal(
    point: Point, config: EngineConfig, tried: Tried, refuse: Callable[[EngineConfig], Infeasible | None]
) -> RefusedPoint | None:
    key = tuple(point.items())
    if (known := tried.quarantined(config)) is not None:
        return RefusedPoint(key, "known_to_fail", known)
    found = refuse(config)
    if found is None:
        return None
    return RefusedPoint(key, found.cause, found.reason, found.advice[0].text if found.advice else "")
