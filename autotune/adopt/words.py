"""Words of a command line after expansion, with the place where each is written."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.adopt.traced import NOWHERE, Traced


@dataclass(frozen=True, slots=True)
class Word:
    """One word that the program gets.

    Attributes:
        text: its characters with their places.
        start: offset of the token that holds it, quotes included.
        end: offset behind that token.
        via: variable that it came through, empty where it stands in the command itself.
        missing: variables without a value; they stay in the text as they are written.
        unknown: a command substitution or the like is part of it.
        certain: False where it is only there under a condition that could not be decided.
    """

    text: Traced
    start: int = NOWHERE
    end: int = NOWHERE
    via: str = ""
    missing: tuple[str, ...] = ()
    unknown: bool = False
    certain: bool = True

    @property
    def plain(self) -> str:
        """The text alone."""
        return self.text.text

    @property
    def resolved(self) -> bool:
        """Everything in it is known."""
        return not self.missing and not self.unknown


def literal(text: Traced, start: int, end: int) -> Word:
    """A word that stands in the file as it is."""
    return Word(text, start, end)
