"""What may be proposed: inside the space, not refused, not quarantined, not tried before."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from autotune.outcome import Infeasible, Proposal, TrialRecord
from autotune.space.config import EngineConfig, FrozenValue

if TYPE_CHECKING:
    from autotune.space.space import SearchSpace

Point: TypeAlias = dict[str, FrozenValue]
Refuse: TypeAlias = Callable[[EngineConfig], "str | None"]
"""Reason why a configuration need not be started, or None. Costs nothing compared with a trial."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A point of the space with its configuration; `refusal` is None for one that may be proposed."""

    point: tuple[tuple[str, FrozenValue], ...]
    config: EngineConfig
    refusal: str | None = None
    duplicate: bool = False

    @property
    def admitted(self) -> bool:
        return self.refusal is None

    def proposal(self, origin: str, note: str = "") -> Proposal:
        return Proposal(config=self.config, point=self.point, origin=origin, note=note)


class Screen:
    """Judges points for one study. What depends on the point alone is remembered; what depends on history is not."""

    def __init__(self, space: SearchSpace, base: EngineConfig, refuse: Refuse) -> None:
        self.space = space
        self.base = base
        self._refuse = refuse
        self._configs: dict[tuple[tuple[str, FrozenValue], ...], tuple[EngineConfig, str | None]] = {}
        self._refusals: dict[str, str | None] = {}

    def candidate(self, point: Mapping[str, FrozenValue], tried: Tried) -> Candidate:
        """Judge a point completely, the preflight's refusal included."""
        draft = self.draft(point, tried)
        if draft.refusal is not None:
            return draft
        return Candidate(draft.point, draft.config, self.refusal(draft.config))

    def draft(self, point: Mapping[str, FrozenValue], tried: Tried) -> Candidate:
        """Judge a point without asking the preflight."""
        canonical = tuple(sorted(self.space.canonical(point).items()))
        if canonical not in self._configs:
            violations = self.space.violations(dict(canonical))
            config = self.space.config(dict(canonical), self.base)
            self._configs[canonical] = (config, "; ".join(violations) or None)
        config, refusal = self._configs[canonical]
        if refusal is None:
            refusal = tried.quarantined(config)
        duplicate = config.hash in tried.hashes
        if refusal is None and duplicate:
            refusal = "already tried"
        return Candidate(canonical, config, refusal, duplicate)

    def refusal(self, config: EngineConfig) -> str | None:
        """The preflight's answer, asked once per configuration."""
        if config.hash not in self._refusals:
            self._refusals[config.hash] = self._refuse(config)
        return self._refusals[config.hash]

    def random_point(self, rng: random.Random) -> Point:
        """Every parameter drawn uniformly; inactive ones fall away when the point is judged."""
        return {parameter.name: rng.choice(parameter.values) for parameter in self.space.parameters}


@dataclass(frozen=True)
class Tried:
    """Configurations that are not to be proposed again, and values that fail whatever else is set."""

    hashes: frozenset[str]
    quarantine: tuple[tuple[tuple[str, FrozenValue], ...], ...] = ()

    @classmethod
    def of(cls, history: Sequence[TrialRecord], running: Sequence[Proposal] = ()) -> Tried:
        return cls(
            hashes=frozenset([record.config.hash for record in history] + [one.config.hash for one in running]),
            quarantine=tuple(
                record.outcome.quarantine
                for record in history
                if isinstance(record.outcome, Infeasible) and record.outcome.quarantine
            ),
        )

    def quarantined(self, config: EngineConfig) -> str | None:
        """Why the configuration is known to fail, or None."""
        if not self.quarantine:
            return None
        args = dict(config.args)
        for values in self.quarantine:
            if all(args.get(name) == value for name, value in values):
                return "known to fail: " + ", ".join(f"{name}={value}" for name, value in values)
        return None
