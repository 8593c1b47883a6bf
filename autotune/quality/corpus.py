"""The texts that are shipped with the gate, and the windows that are cut from them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

CHAT = (
    {"role": "user", "content": "Name two fruits that are not round."},
    {"role": "assistant", "content": "Bananas and pears."},
    {"role": "user", "content": "And one that is?"},
)
"""A conversation that shows which chat template is in force."""
PROBE = "Größe 12,345.67 €\n\tdef f(x): return x**2  # 数字 and <|tags|>"
"""A text whose ids differ between most tokenizers."""


@dataclass(frozen=True, slots=True)
class Text:
    """One text of the corpus; `kind` is such as `prose-en` or `code-python`."""

    kind: str
    content: str


@cache
def texts() -> tuple[Text, ...]:
    """All texts, in their fixed order."""
    folder = files("autotune.quality") / "corpus"
    found = sorted((item for item in folder.iterdir() if item.name.endswith(".txt")), key=lambda item: item.name)
    return tuple(Text(item.name[3:-4], item.read_text("utf-8").strip()) for item in found)


def corpus_hash() -> str:
    """Twelve hex digits that change with every change of a text."""
    whole = hashlib.sha256()
    for text in texts():
        whole.update(f"{text.kind}\0{text.content}\0".encode())
    return whole.hexdigest()[:12]


def windows(tokens: Sequence[Sequence[int]], length: int, count: int) -> list[tuple[int, ...]]:
    """Cut up to `count` windows of `length` ids: first one of every text, then the second ones, and so on.

    Windows do not overlap. A text that is too short for one window is continued with the texts after it.

    Args:
        tokens: the texts as ids.
        length: ids per window.
        count: how many windows are wanted; fewer come back where the texts hold no more.
    """
    cut = [_cuts(tokens, index, length) for index in range(len(tokens))]
    found: list[tuple[int, ...]] = []
    for turn in range(max((len(pieces) for pieces in cut), default=0)):
        found += [pieces[turn] for pieces in cut if turn < len(pieces)]
    return found[:count]


def long_text(tokens: Sequence[Sequence[int]], length: int, start: int) -> tuple[int, ...]:
    """Exactly `length` ids: all texts one after the other from text `start` on, again and again where that is short."""
    found: list[int] = []
    index = start
    while len(found) < length:
        found += tokens[index % len(tokens)]
        index += 1
    return tuple(found[:length])


def starts(texts: int, first: int, more: int) -> list[int]:
    """Where `first` and then `more` long texts begin among so many texts: each part evenly, no place twice."""
    one = [turn * texts // first for turn in range(min(first, texts))]
    places = [(2 * turn + 1) * texts // (2 * more) for turn in range(more)]
    return [*one, *(place for place in dict.fromkeys(places) if place not in one)]


def _cuts(tokens: Sequence[Sequence[int]], index: int, length: int) -> list[tuple[int, ...]]:
    own = list(tokens[index])
    if len(own) < length:
        return [long_text(tokens, length, index)]
    return [tuple(own[at : at + length]) for at in range(0, len(own) - length + 1, length)]
