"""`EngineConfig`: which vLLM is to be started, as one canonical value."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

Scalar: TypeAlias = bool | int | float | str | None
FrozenValue: TypeAlias = Scalar | tuple[Scalar, ...]
"""A canonical argument value: dictionaries are flattened to dotted names, lists become tuples."""


@dataclass(frozen=True, slots=True)
class Change:
    """One argument that differs: `None` means that the argument is not given (vLLM's default)."""

    name: str
    before: FrozenValue
    after: FrozenValue


@dataclass(frozen=True)
class EngineConfig:
    """Canonical arguments and environment of an engine.

    Names are vLLM's with underscores (`max_num_seqs`); nested ones are dotted (`compilation_config.mode`). A value of
    `None` is the same as not giving the argument. Two configurations that mean the same have the same `hash`.
    """

    args: tuple[tuple[str, FrozenValue], ...] = ()
    env: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, args: Mapping[str, object] | None = None, env: Mapping[str, str] | None = None) -> EngineConfig:
        """Make one from plain mappings; dashes become underscores, nested mappings become dotted names.

        Raises:
            TypeError: a value is neither a scalar, a list of scalars nor a mapping of such.
        """
        flat: dict[str, FrozenValue] = {}
        for name, value in (args or {}).items():
            _flatten(name.lstrip("-").replace("-", "_"), value, flat)
        return cls(
            args=tuple(sorted((name, value) for name, value in flat.items() if value is not None)),
            env=tuple(sorted((env or {}).items())),
        )

    def get(self, name: str, default: FrozenValue = None) -> FrozenValue:
        """The value of one argument, or `default` where it is not given."""
        return dict(self.args).get(name, default)

    def merged(self, args: Mapping[str, object], env: Mapping[str, str] | None = None) -> EngineConfig:
        """This configuration with `args` (and `env`) laid over it; a value of `None` removes the argument."""
        over: dict[str, FrozenValue] = {}
        for name, value in args.items():
            _flatten(name.replace("-", "_"), value, over)
        return EngineConfig.of({**dict(self.args), **over}, {**dict(self.env), **(env or {})})

    @cached_property
    def hash(self) -> str:
        """Twelve hex digits; equal for equal configurations, on every machine."""
        text = json.dumps([self.args, self.env], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def split(self, live: Iterable[str]) -> tuple[EngineConfig, dict[str, FrozenValue]]:
        """The part that needs a new process, and the settings named in `live`."""
        names = frozenset(live)
        kept = tuple(item for item in self.args if item[0] not in names)
        return EngineConfig(kept, self.env), {name: value for name, value in self.args if name in names}

    def restart_key(self, live: Iterable[str] = ()) -> str:
        """Hash of the part that needs a new process: configurations that share it can share a start."""
        return self.split(live)[0].hash

    def changes_from(self, other: EngineConfig) -> tuple[Change, ...]:
        """What differs from `other`, arguments first, then variables."""
        return (*_changes(dict(other.args), dict(self.args)), *_changes(dict(other.env), dict(self.env)))

    def to_dict(self) -> dict[str, dict[str, FrozenValue]]:
        """A JSON-able form; `EngineConfig.of(**config.to_dict())` gives the same configuration back."""
        return {"args": dict(self.args), "env": dict(self.env)}


def _flatten(name: str, value: object, into: dict[str, FrozenValue]) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _flatten(f"{name}.{key}", inner, into)
    elif isinstance(value, list | tuple):
        into[name] = tuple(_scalar(name, item) for item in value)
    else:
        into[name] = _scalar(name, value)


def _scalar(name: str, value: object) -> Scalar:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{name}: {type(value).__name__} is no argument value")


def _changes(before: Mapping[str, FrozenValue], after: Mapping[str, FrozenValue]) -> Iterable[Change]:
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield Change(name, before.get(name), after.get(name))
