"""Secrets stay references: what must never stand in an exported file, and how it is named instead."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from autotune.adopt.secret_names import is_secret
from autotune.engine.redaction import REDACTED, redact
from autotune.export.facts import deployment_facts
from autotune.space.config import EngineConfig, FrozenValue

_REFERENCE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?|\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable of the deployment: a value, or a reference to the variable `reference`."""

    name: str
    value: str = ""
    reference: str = ""


def variables(config: EngineConfig) -> tuple[Variable, ...]:
    """The environment of the deployment, sorted by name; secrets and `${NAME}` become references."""
    found = {name: _variable(name, value) for name, value in config.env}
    for name, instead in deployment_facts().secret_arguments.items():
        if config.get(name) is not None:
            found.setdefault(instead, Variable(instead, reference=instead))
    return tuple(found[name] for name in sorted(found))


def without_secrets(config: EngineConfig) -> tuple[EngineConfig, tuple[str, ...]]:
    """The configuration without secret arguments, and a sentence for each that is a reference now."""
    facts = deployment_facts().secret_arguments
    args: dict[str, FrozenValue] = {}
    env = dict(config.env)
    notes: list[str] = []
    for name, value in config.args:
        if name in facts:
            env.setdefault(facts[name], f"${{{facts[name]}}}")
            notes.append(f"{name} is read from the variable {facts[name]}; its value is not written here")
        elif any(redact(text) != text for text in _texts(name, value)):
            notes.append(f"{name} holds a secret and was left out; give it at the start")
        else:
            args[name] = value
    for name, value in env.items():
        if is_secret(name, value) and not _REFERENCE.fullmatch(value):
            env[name] = f"${{{name}}}"
            notes.append(f"{name} is a reference; its value is not written here")
    return EngineConfig.of(args, env), tuple(notes)


def _texts(name: str, value: FrozenValue) -> Iterable[str]:
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, str):
            yield item
            yield f"{name.rpartition('.')[2]}={item}"


def _variable(name: str, value: str) -> Variable:
    match = _REFERENCE.fullmatch(value)
    if match:
        return Variable(name, reference=match.group(1) or match.group(2))
    if is_secret(name, value) or REDACTED in value:
        return Variable(name, reference=name)
    return Variable(name, value=value)
