"""What may be proposed: inside the space, not refused, not quarantined, not tried before."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from autotune.outcome import Broken, Proposal, TrialRecord
from autotune.search.whole import WholeLimit
from autotune.space.config import EngineConfig, FrozenValue
from autotune.space.defaults import real_changes

if TYPE_CHECKING:
    from autotune.space.space import SearchSpace

Point: TypeAlias = dict[str, FrozenValue]
Key: TypeAlias = tuple[tuple[str, FrozenValue], ...]
"""A canonical point: active parameters only, by name."""
Refuse: TypeAlias = Callable[[EngineConfig], "str | None"]
"""Reason why a configuration need not be started, or None. Costs nothing compared with a trial."""


REMEMBERED = 20_000
"""Judgements that are kept between two proposals; one takes about a kilobyte."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A point of the space with its configuration; `refusal` is None for one that may be proposed.

    `duplicate`: it was or is being measured, or is a neighbour of what is being measured; nothing is wrong with it.
    """

    point: Key
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
        self.whole = WholeLimit.of(space)
        self.base = base
        self._refuse = refuse
        self._configs: dict[Key, EngineConfig] = {}
        self._legal: dict[Key, str | None] = {}
        self._refusals: dict[str, str | None] = {}

    def forget(self) -> None:
        """Keep memory bounded: a search looks at hundreds of points for one that it proposes."""
        for remembered in (self._configs, self._legal, self._refusals):
            if len(remembered) > REMEMBERED:
                remembered.clear()

    def candidate(self, point: Mapping[str, FrozenValue], tried: Tried) -> Candidate:
        """Judge a point completely, the preflight's refusal included."""
        key = self.key(point)
        config = self.config(key)
        seen = self._seen(key, config, tried)
        refusal = self.illegal(key) or tried.quarantined(config) or seen
        return Candidate(key, config, refusal or self._refused(config), seen is not None)

    def key(self, point: Mapping[str, FrozenValue]) -> Key:
        """The canonical point; active parameters without a value get their middle step (a choice its first value)."""
        known = point
        while True:
            active = self.space.active(known)
            missing = [name for name in active if name not in known]
            if not missing:
                return tuple((name, known[name]) for name in sorted(active))
            known = {**known, **{name: self._default(name) for name in missing}}

    def illegal(self, key: Key) -> str | None:
        """The relations of the space that a canonical point breaks, or None."""
        if key not in self._legal:
            self._legal[key] = "; ".join(self.space.violations(dict(key))) or None
        return self._legal[key]

    def config(self, key: Key) -> EngineConfig:
        """The complete configuration of a canonical point; the baseline's where only vLLM's defaults are spelt out."""
        if key not in self._configs:
            config = self.space.config(dict(key), self.base)
            self._configs[key] = config if real_changes(config, self.base) else self.base
        return self._configs[key]

    def random_point(self, rng: random.Random) -> Point:
        """Every parameter drawn uniformly; inactive ones fall away when the point is judged."""
        return {parameter.name: rng.choice(parameter.values) for parameter in self.space.parameters}

    def _seen(self, key: Key, config: EngineConfig, tried: Tried) -> str | None:
        if config.hash in tried.hashes:
            return "already tried"
        if tried.pending and any(one in tried.pending for one in self.steps(key)):
            return "next to what is being measured now"
        return None

    def steps(self, key: Key) -> Iterator[Key]:
        """The neighbours of a point: one step of one ladder away. Measured together they teach hardly more than one."""
        for place, (name, value) in enumerate(key):
            parameter = self.space.by_name[name]
            if not parameter.ordered or value not in parameter.values:
                continue
            index = parameter.values.index(value)
            for other in parameter.values[max(index - 1, 0) : index + 2]:
                if other != value:
                    yield (*key[:place], (name, other), *key[place + 1 :])

    def _refused(self, config: EngineConfig) -> str | None:
        """The preflight's answer, asked once per configuration."""
        if config.hash not in self._refusals:
            self._refusals[config.hash] = self._refuse(config)
        return self._refusals[config.hash]

    def _default(self, name: str) -> FrozenValue:
        parameter = self.space.by_name[name]
        return parameter.values[len(parameter.values) // 2 if parameter.ordered else 0]


@dataclass(frozen=True)
class Tried:
    """Configurations that are not to be proposed again, and values that fail whatever else is set."""

    hashes: frozenset[str]
    quarantine: tuple[Key, ...] = ()
    pending: Mapping[Key, None] = field(default_factory=dict)
    """Points that are being measured, in their order: their neighbours wait until the outcome is known."""

    @classmethod
    def of(cls, history: Sequence[TrialRecord], running: Sequence[Proposal] = ()) -> Tried:
        return cls(
            hashes=frozenset([record.config.hash for record in history] + [one.config.hash for one in running]),
            quarantine=tuple(
                record.outcome.quarantine
                for record in history
                if not isinstance(record.outcome, Broken) and record.outcome.quarantine
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
