"""Carries a configuration from one vLLM version to another: renames, removals and additions, from `renames.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TypeAlias

from autotune.space.config import EngineConfig, FrozenValue

Version: TypeAlias = tuple[int, int]
OLDEST: Version = (0, 26)
NEWEST: Version = (0, 33)
"""The versions that are supported; others are treated as the nearer end."""


@dataclass(frozen=True, slots=True)
class Rename:
    """What happened to one argument or variable.

    Attributes:
        name: of the argument (dotted) or variable.
        since: first version that has it.
        gone: first version without it, None while it exists.
        to: its name from `gone` on, empty where there is none.
        negate: the switch under the new name means the opposite.
        hint: what to do instead.
    """

    name: str
    since: Version = (0, 0)
    gone: Version | None = None
    to: str = ""
    negate: bool = False
    hint: str = ""

    def exists_in(self, version: Version) -> bool:
        """Whether that version has it under this name."""
        return self.since <= version and (self.gone is None or version < self.gone)


def parse_version(text: str) -> Version:
    """`(0, 32)` from `0.32.0`, `0.32.1rc1` or `v0.32.0+cpu`; the newest supported one where nothing can be read."""
    match = re.match(r"v?(\d+)\.(\d+)", text)
    return (int(match.group(1)), int(match.group(2))) if match else NEWEST


@lru_cache(maxsize=1)
def argument_renames() -> Mapping[str, Rename]:
    """Arguments that changed, by name."""
    return _read("argument")


@lru_cache(maxsize=1)
def variable_renames() -> Mapping[str, Rename]:
    """Environment variables that changed, by name."""
    return _read("variable")


def translate(config: EngineConfig, version: str) -> tuple[EngineConfig, tuple[str, ...]]:
    """`config` in the words of vLLM `version`, and a sentence for everything that was renamed or left out.

    A value that is given under both names keeps the one under the newer name.
    """
    target = parse_version(version)
    args: dict[str, FrozenValue] = {}
    notes: list[str] = []
    moved: dict[str, FrozenValue] = {}
    for name, value in config.args:
        rule = _rule(name)
        if rule is None or rule.exists_in(target):
            args[name] = value
            continue
        new = _successor(rule, target)
        if new is None:
            notes.append(_left_out(name, rule, version))
            continue
        full = new + name[len(rule.name) :]
        moved[full] = (not value) if rule.negate and isinstance(value, bool) else value
        notes.append(f"{name} is {full} in vLLM {version}")
    env: dict[str, str] = {}
    for variable, text in config.env:
        gone = variable_renames().get(variable)
        if gone is None or gone.exists_in(target):
            env[variable] = text
        elif gone.to and _exists(gone.to, target):
            moved.setdefault(gone.to, int(text) if text.isdigit() else text)
            notes.append(f"{variable} is the argument {gone.to} in vLLM {version}")
        else:
            notes.append(_left_out(variable, gone, version))
    return EngineConfig.of({**moved, **args}, env), tuple(notes)


def missing_in(names: Iterable[str], version: str) -> tuple[str, ...]:
    """Those of `names` that vLLM `version` knows neither under this nor under another name."""
    target = parse_version(version)
    rules = ((name, _rule(name)) for name in names)
    return tuple(
        name for name, rule in rules if rule and not rule.exists_in(target) and _successor(rule, target) is None
    )


def _rule(name: str) -> Rename | None:
    """The rule for a name or for the nearest mapping that holds it."""
    while name:
        if name in argument_renames():
            return argument_renames()[name]
        name = name.rpartition(".")[0]
    return None


def _successor(rule: Rename, target: Version) -> str | None:
    seen = {rule.name}
    while not rule.exists_in(target):
        if rule.gone is None or target < rule.gone or not rule.to or rule.to in seen:
            return None
        seen.add(rule.to)
        following = argument_renames().get(rule.to)
        if following is None:
            return rule.to
        rule = following
    return rule.name


def _exists(name: str, target: Version) -> bool:
    rule = _rule(name)
    return rule is None or rule.exists_in(target)


def _left_out(name: str, rule: Rename, version: str) -> str:
    if version and parse_version(version) < rule.since:
        return f"{name} needs vLLM {rule.since[0]}.{rule.since[1]}; {version} runs without it"
    return f"{name} is gone in vLLM {version} and was left out. {rule.hint}".rstrip()


def _read(group: str) -> dict[str, Rename]:
    text = (files("autotune.space") / "renames.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text)[group]
    return {
        row["name"]: Rename(
            name=row["name"],
            since=parse_version(row["since"]) if "since" in row else (0, 0),
            gone=parse_version(row["gone"]) if "gone" in row else None,
            to=row.get("to", ""),
            negate=row.get("negate", False),
            hint=row.get("hint", ""),
        )
        for row in rows
    }
