"""Writes a value so that it reads back as itself where it goes: inside shell quotes, inside a YAML scalar, or both."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from autotune.adopt.traced import BARE, DOUBLE, SINGLE
from autotune.adopt.values import Adopted
from autotune.adopt.yaml_tree import parse
from autotune.errors import SpecError

_PLAIN = re.compile(r"[A-Za-z0-9_./=-][A-Za-z0-9_./=:@%+-]*")
_TYPED = re.compile(r"[-+.]?\d.*|true|false|null|yes|no|on|off|~|y|n", re.IGNORECASE)
_YAML_FORMATS = frozenset({"kubernetes", "kserve", "compose", "production-stack", "llm-d", "helm", "vllm-yaml"})


@dataclass(frozen=True, slots=True)
class Scalar:
    """A YAML scalar in the file: where it stands and how it is written (`'`, `"`, `|`, `>`, or plain as empty)."""

    start: int
    end: int
    style: str
    flow: bool


def scalars_of(adopted: Adopted) -> tuple[Scalar, ...]:
    """Every scalar of a YAML file; empty for other formats."""
    if adopted.format not in _YAML_FORMATS:
        return ()
    try:
        trees = parse(adopted.text, adopted.path)
    except SpecError:
        return ()
    found: dict[int, Scalar] = {}
    for tree in trees:
        _collect(tree.root, False, found, set())
    return tuple(found.values())


def scalar_at(scalars: tuple[Scalar, ...], start: int, end: int) -> Scalar | None:
    """The scalar that holds a piece of the file."""
    return next((scalar for scalar in scalars if scalar.start <= start and end <= scalar.end), None)


def for_shell(value: str, quoting: str) -> str | None:
    """The value inside the shell quotes of `quoting`; None where that cannot be."""
    if quoting == BARE:
        return shlex.quote(value)
    if quoting == SINGLE:
        return value.replace("'", "'\\''")
    if quoting == DOUBLE:
        return re.sub(r'(["\\$`])', r"\\\1", value)
    return value


def for_yaml(value: str, scalar: Scalar | None, start: int, end: int, *, compose: bool = False) -> str | None:
    """The value as a piece of a YAML scalar; None where the scalar's style cannot hold it."""
    text = value.replace("$", "$$") if compose else value
    if scalar is None or scalar.style in ("|", ">"):
        return text if "\n" not in text else None
    if scalar.style == "'":
        return text.replace("'", "''")
    if scalar.style == '"':
        return json.dumps(text, ensure_ascii=False)[1:-1]
    whole = start == scalar.start and end == scalar.end
    if whole:
        return yaml_item(text, flow=scalar.flow)
    risky = ": " in text or " #" in text or (scalar.flow and set(text) & set("{}[],"))
    return None if risky else text


def yaml_item(text: str, *, flow: bool = False) -> str:
    """A text as a YAML scalar of its own that reads back as text."""
    if flow or not text:
        return json.dumps(text, ensure_ascii=False)
    if _PLAIN.fullmatch(text) and not _TYPED.fullmatch(text) and not text.endswith(":"):
        return text
    return "'" + text.replace("'", "''") + "'" if '"' in text else json.dumps(text, ensure_ascii=False)


def yaml_value(value: object) -> str:
    """A value as YAML keeps it: numbers and switches as such, texts quoted where needed, the rest in flow style."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return json.dumps(value)
    if isinstance(value, str):
        return yaml_item(value)
    return json.dumps(value, ensure_ascii=False)


def _collect(node: Node, flow: bool, found: dict[int, Scalar], seen: set[int]) -> None:
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, ScalarNode):
        start, end = node.start_mark.index, node.end_mark.index
        found[start] = Scalar(start, end, node.style or "", flow)
        return
    inside = flow or bool(getattr(node, "flow_style", False))
    if isinstance(node, SequenceNode):
        for item in node.value:
            _collect(item, inside, found, seen)
    elif isinstance(node, MappingNode):
        for key, value in node.value:
            _collect(key, inside, found, seen)
            _collect(value, inside, found, seen)
