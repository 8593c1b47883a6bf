"""Where something new goes in a file, in the style of what stands there."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from autotune.adopt.values import Insertion, Line, LineStyle
from autotune.adopt.words import Word
from autotune.adopt.yaml_tree import Tree, elements, items

_CONTINUED = re.compile(r"\\\r?\n[ \t]*$")
_REFERENCE = re.compile(r"[ \t]+(\\?\"|)\$[({]\w+[)}]\1")
_NEW_LINE = re.compile(r"\n[ \t]*$")


def shell_line(
    words: Sequence[Word], text: str, head: Sequence[Word] = (), inside: Sequence[tuple[int, int]] = ()
) -> Line:
    """A command line that a shell reads; a new argument goes behind the last one that is certainly given.

    Args:
        words: its arguments.
        text: the file.
        head: words in front of them.
        inside: parts of the file that hold the command; a word that stands elsewhere came by a reference. Empty: all.
    """
    here = [any(a <= word.end <= b for a, b in inside) if inside else word.end >= 0 for word in words]
    placed = [word for word, is_here in zip(words, here, strict=True) if is_here and word.certain]
    last = placed[-1] if placed else next((word for word in reversed(head) if word.end >= 0), None)
    unplaced = len(words) - 1 - words.index(last) if last is not None and last in words else 0
    insertion = Insertion(_behind(text, last.end, unplaced), _before(placed, last, text)) if last is not None else None
    return Line(tuple(words), "shell", insertion, _is_joined(words))


def _behind(text: str, offset: int, unplaced: int) -> int:
    """Outside of a reference that gave the last word, and behind those that gave words without a place of their own."""
    start = max(text.rfind(letter, 0, offset) for letter in " \t\n\"'") + 1
    for _ in range(text.count("${", start, offset) - text.count("}", start, offset)):
        end = text.find("}", offset)
        offset = end + 1 if end >= 0 else offset
    for _ in range(unplaced):
        reference = _REFERENCE.match(text, offset)
        offset = reference.end() if reference else offset
    return offset


def item_line(words: Sequence[Word], tree: Tree, sequence: Node | None) -> Line:
    """A command line whose words are items of a YAML list."""
    nodes = elements(sequence)
    style: LineStyle = "flow" if isinstance(sequence, SequenceNode) and sequence.flow_style else "items"
    return Line(tuple(words), style, item_insertion(tree, nodes, flow=style == "flow"), _is_joined(words))


def item_insertion(tree: Tree, nodes: Sequence[Node], *, flow: bool) -> Insertion | None:
    """Behind the last item of a list; None for an empty one."""
    if not nodes or nodes[-1].start_mark is None:
        return None
    _start, end = tree.span(nodes[-1])
    if flow:
        return Insertion(end, ", ")
    line_start = tree.text.rfind("\n", 0, nodes[-1].start_mark.index) + 1
    lead = tree.text[line_start : nodes[-1].start_mark.index]
    return Insertion(end, "\n" + re.sub(r"[^\s-]", " ", lead))


def key_insertion(tree: Tree, mapping: Node | None) -> Insertion | None:
    """Behind the last key of a block mapping, or inside the braces of a flow mapping."""
    pairs = items(mapping)
    if not isinstance(mapping, MappingNode) or not pairs:
        return None
    _, key, value = pairs[-1]
    if key.start_mark is None:
        return None
    last = value if tree.span(value)[1] > tree.span(key)[1] else key
    end = tree.span(last)[1]
    if last is key:
        end += 1  # behind the colon of a key without a value
    if mapping.flow_style:
        return Insertion(end, ", ")
    column = key.start_mark.column
    return Insertion(end, "\n" + " " * column)


def _before(placed: Sequence[Word], last: Word | None, text: str) -> str:
    flags = [word for word in placed if word.plain.startswith("-")] or ([last] if last is not None else [])
    if not flags:
        return " "
    lead = text[: flags[-1].start]
    continued = _CONTINUED.search(lead)
    if continued:
        return " " + continued.group()
    new_line = _NEW_LINE.search(lead)
    return new_line.group() if new_line and len(placed) > 1 else " "


def _is_joined(words: Sequence[Word]) -> bool:
    """Most flags that have a value are written as `--flag=value`."""
    flags = [index for index, word in enumerate(words) if word.plain.startswith("--")]
    joined = sum("=" in words[index].plain for index in flags)
    apart = sum(
        "=" not in words[index].plain and index + 1 < len(words) and not words[index + 1].plain.startswith("-")
        for index in flags
    )
    return joined > apart
