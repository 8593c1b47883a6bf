"""Changes of a text at offsets: everything else stays byte for byte."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Edit:
    """Put `text` in the place of the characters from `start` to before `end`; `order` sorts what goes to one offset."""

    start: int
    end: int
    text: str
    order: int = 0


def apply(text: str, edits: Iterable[Edit]) -> str:
    """The text with all edits; insertions at one offset follow each other in the given order.

    Raises:
        ValueError: two edits overlap, or one lies outside the text.
    """
    ordered = sorted(enumerate(edits), key=lambda item: (item[1].start, item[1].end, item[1].order, item[0]))
    parts: list[str] = []
    position = 0
    for _, edit in ordered:
        if edit.start < position or edit.end < edit.start or edit.end > len(text):
            raise ValueError(f"edits overlap at {edit.start}")
        parts += [text[position : edit.start], edit.text]
        position = edit.end
    return "".join([*parts, text[position:]])
