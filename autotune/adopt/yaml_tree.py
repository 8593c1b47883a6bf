"""YAML as nodes that know where they stand in the file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from autotune.adopt.traced import NOWHERE, Traced, aligned
from autotune.errors import SpecError

TEMPLATE_HINT = "it looks like a Helm template: give the values file, or the output of `helm template`"
Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"


@dataclass(frozen=True)
class Tree:
    """One document of a YAML file.

    Attributes:
        text: the whole file.
        base: offset of `text` in the file that is to be edited (a here document stands inside a script).
        origins: offsets character by character where `text` went through a shell, else empty.
    """

    text: str
    root: Node
    origins: tuple[int, ...] = ()

    def origin(self, index: int) -> int:
        """Offset in the file of the character at `index` of the text."""
        if not self.origins:
            return index
        if index < len(self.origins):
            return self.origins[index]
        return self.origins[-1] + 1 if self.origins else 0

    def traced(self, node: Node) -> Traced:
        """A scalar's text with its places; empty for other nodes."""
        if not isinstance(node, ScalarNode):
            return Traced()
        if node.start_mark is None:
            return Traced.made(str(node.value))
        start, end = node.start_mark.index, node.end_mark.index
        if node.style in ("|", ">"):  # a `-` of its header is none of the text
            start = self.text.find("\n", start) + 1
        found = aligned(str(node.value), self.text[start:end], start)
        if not self.origins:
            return found
        moved = tuple(self.origin(at) if at >= 0 else at for at in found.origins)
        return Traced(found.text, moved, found.quoting)

    def span(self, node: Node) -> tuple[int, int]:
        """From where to where a node stands, quotes included, without the white space behind it; -1 for nowhere."""
        if node.start_mark is None:
            return (NOWHERE, NOWHERE)
        start, end = node.start_mark.index, node.end_mark.index
        while end > start and self.text[end - 1] in " \t\r\n":
            end -= 1
        return self.origin(start), self.origin(end - 1) + 1 if end > start else self.origin(start)


@lru_cache(maxsize=8)
def parse(text: str, path: Path, origins: tuple[int, ...] = ()) -> tuple[Tree, ...]:
    """Every document of a YAML text. Kept for a while, since every source looks at the same file.

    Raises:
        SpecError: it is no YAML.
    """
    yaml = YAML(typ="safe", pure=True)  # the round-trip scanner marks folds of `>` with a control character
    try:
        return tuple(Tree(text, node, origins) for node in yaml.compose_all(text) if node is not None)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else None
        hint = "mend the file"
        if "{{" in text:
            hint = TEMPLATE_HINT
        raise SpecError(
            f"this is no YAML: {error.problem or error.context}", file=path, line=line, hint=hint
        ) from error
    except (YAMLError, ValueError, RecursionError) as error:
        raise SpecError(f"this is no YAML: {error}", file=path, hint="mend the file") from error


def items(node: Node | None) -> list[tuple[str, Node, Node]]:
    """(key, key node, value node) of a mapping, merge keys resolved; empty for other nodes."""
    if not isinstance(node, MappingNode):
        return []
    own: list[tuple[str, Node, Node]] = []
    merged: list[tuple[str, Node, Node]] = []
    for key, value in node.value:
        if isinstance(key, ScalarNode) and key.value == "<<":
            for part in value.value if isinstance(value, SequenceNode) else [value]:
                merged += items(part)
        elif isinstance(key, ScalarNode):
            own.append((str(key.value), key, value))
    names = {name for name, _, _ in own}
    return own + [item for item in merged if item[0] not in names]


def detached(node: Node) -> Node:
    """The same for use beside nodes of another file: it stands nowhere there."""
    if isinstance(node, MappingNode):
        return MappingNode(node.tag, [(detached(key), detached(value)) for key, value in node.value])
    if isinstance(node, SequenceNode):
        return SequenceNode(node.tag, [detached(value) for value in node.value])
    return ScalarNode(node.tag, node.value)


def child(node: Node | None, *keys: str) -> Node | None:
    """The node below `keys`; None where a key is missing."""
    for key in keys:
        node = next((value for name, _, value in items(node) if name == key), None)
        if node is None:
            return None
    return node


def elements(node: Node | None) -> list[Node]:
    """Items of a sequence; empty for other nodes."""
    return list(node.value) if isinstance(node, SequenceNode) else []


def text_of(node: Node | None) -> str:
    """A scalar's text; empty for other nodes."""
    return str(node.value) if isinstance(node, ScalarNode) else ""


def walk(node: Node | None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Node]]:
    """Every mapping below (and at) a node with its path, outer ones first; each node once."""
    seen: set[int] = set()
    stack: list[tuple[tuple[str, ...], Node]] = [(path, node)] if node is not None else []
    while stack:
        here, current = stack.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        if isinstance(current, MappingNode):
            yield here, current
            stack += [((*here, name), value) for name, _, value in items(current)]
        elif isinstance(current, SequenceNode):
            stack += [((*here, str(index)), value) for index, value in enumerate(current.value)]


def plain(node: Node | None) -> Plain:
    """The value of a node; anchors are followed, tags beyond the core ones are read as text."""
    if isinstance(node, MappingNode):
        return {name: plain(value) for name, _, value in items(node)}
    if isinstance(node, SequenceNode):
        return [plain(value) for value in node.value]
    if not isinstance(node, ScalarNode):
        return None
    return _scalar(str(node.tag).rpartition(":")[2], str(node.value))


def _scalar(tag: str, text: str) -> Plain:
    try:
        if tag == "null":
            return None
        if tag == "bool":
            return text.lower() in ("true", "yes", "on", "y")
        if tag == "int":
            return int(text.replace("_", ""), 0)
        if tag == "float":
            return float(text.replace("_", ""))
    except ValueError:
        pass
    return text
