"""The precision key: configurations that share it give the same answers up to noise, and are checked once."""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from autotune.engine.protocol import Resolved
from autotune.space.config import EngineConfig, FrozenValue
from autotune.spec.topology import bare_name


@dataclass(frozen=True, slots=True)
class _Lists:
    arguments: frozenset[str]
    resolved: tuple[str, ...]
    prefixes: tuple[str, ...]
    ignored: frozenset[str]


@cache
def _lists() -> _Lists:
    data = tomllib.loads((files("autotune.quality") / "lossless.toml").read_text("utf-8"))
    return _Lists(
        frozenset(data["arguments"]),
        tuple(data["resolved"]),
        tuple(data["environment_prefixes"]),
        frozenset(data["environment_ignored"]),
    )


def precision_settings(config: EngineConfig) -> tuple[tuple[str, FrozenValue], ...]:
    """The settings that may change answers: weights, KV cache, layout, backends, speculation, compilation, unknowns."""
    lists = _lists()
    arguments = [(name, value) for name, value in config.args if bare_name(name) not in lists.arguments]
    variables = [
        (name, value) for name, value in config.env if name.startswith(lists.prefixes) and name not in lists.ignored
    ]
    return (*arguments, *variables)


def precision_key(config: EngineConfig, resolved: Resolved) -> str:
    """Twelve hex digits, equal for configurations that are checked once.

    Args:
        config: what was asked for.
        resolved: what the engine chose where it was not asked, and its version.
    """
    chosen = [(name, value) for name, value in resolved.values if name in _lists().resolved]
    text = json.dumps([precision_settings(config), sorted(chosen, key=str), resolved.version], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def same_precision(first: EngineConfig, second: EngineConfig) -> bool:
    """Both ask for the same in everything that may change answers."""
    return precision_settings(first) == precision_settings(second)


def only_change(config: EngineConfig, baseline: EngineConfig) -> tuple[str, FrozenValue] | None:
    """The one setting that differs from the baseline in what may change answers; None where it is none or several.

    Where such a configuration fails the gate, that value fails alone: it need not be tried again in this study.
    """
    mine, theirs = precision_settings(config), precision_settings(baseline)
    changed = [item for item in mine if item not in theirs]
    removed = {name for name, _ in theirs} - {name for name, _ in mine}
    return changed[0] if len(changed) == 1 and not removed else None
