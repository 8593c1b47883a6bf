"""Text that knows where each of its characters stands in a file, whatever it went through on the way.

A value may be written in a YAML scalar, inside a shell script, inside a variable of that script. To change nothing but
that value later, every character keeps its offset in the file and the quotes that it stands in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NOWHERE = -1
"""Offset of a character that does not stand in the file."""
RAW, BARE, SINGLE, DOUBLE = ".", "b", "s", "d"
"""How a character stands for a shell: not read by one, outside quotes, in single quotes, in double quotes."""


@dataclass(frozen=True, slots=True)
class Traced:
    """Text with origins.

    Attributes:
        text: the characters.
        origins: offset of each one in the file, `NOWHERE` for none.
        quoting: how each one is quoted for the shell, one letter a character.
    """

    text: str = ""
    origins: tuple[int, ...] = ()
    quoting: str = ""

    @classmethod
    def of(cls, text: str, start: int = 0) -> Traced:
        """The text that stands at `start` as it is."""
        return cls(text, tuple(range(start, start + len(text))), RAW * len(text))

    @classmethod
    def made(cls, text: str) -> Traced:
        """Text that stands nowhere."""
        return cls(text, (NOWHERE,) * len(text), RAW * len(text))

    def __getitem__(self, part: slice) -> Traced:
        return Traced(self.text[part], self.origins[part], self.quoting[part])

    def __add__(self, other: Traced) -> Traced:
        return Traced(self.text + other.text, self.origins + other.origins, self.quoting + other.quoting)

    def __len__(self) -> int:
        return len(self.text)

    def quoted(self, letter: str) -> Traced:
        """The same, read by a shell inside such quotes."""
        return Traced(self.text, self.origins, letter * len(self.text))

    @property
    def span(self) -> tuple[int, int] | None:
        """From the first to behind the last character in the file; None where it does not stand there as one piece."""
        if not self.origins or NOWHERE in self.origins:
            return None
        ordered = all(a < b for a, b in zip(self.origins, self.origins[1:], strict=False))
        return (self.origins[0], self.origins[-1] + 1) if ordered else None

    def at(self, index: int) -> int:
        """Offset in the file of the character at `index`, or just behind the last one."""
        if index < len(self.origins):
            return self.origins[index]
        return self.origins[-1] + 1 if self.origins and self.origins[-1] != NOWHERE else NOWHERE


def joined(parts: Iterable[Traced]) -> Traced:
    """All parts in a row."""
    text: list[str] = []
    origins: list[int] = []
    quoting: list[str] = []
    for part in parts:
        text.append(part.text)
        origins.extend(part.origins)
        quoting.append(part.quoting)
    return Traced("".join(text), tuple(origins), "".join(quoting))


def split(text: Traced, separators: str = " \t\n") -> Sequence[Traced]:
    """Words between white space, as a shell splits an unquoted variable."""
    words: list[Traced] = []
    start: int | None = None
    for index, letter in enumerate(text.text):
        if letter in separators:
            if start is not None:
                words.append(text[start:index])
            start = None
        elif start is None:
            start = index
    if start is not None:
        words.append(text[start:])
    return words


def aligned(value: str, raw: str, start: int) -> Traced:
    """Where the characters of a decoded YAML scalar stand in its source `raw`, which begins at `start`.

    Quotes, escapes, indentation and folded line breaks are stepped over.
    """
    origins: list[int] = []
    position = 0
    for letter in value:
        if letter.isspace():
            found = position if position < len(raw) and raw[position].isspace() else NOWHERE
            origins.append(start + found if found != NOWHERE else NOWHERE)
            if found != NOWHERE:
                position += 1
                if letter in "\n " and raw[found] == "\n":
                    position = _indentation(raw, position, value, len(origins))
            continue
        found = raw.find(letter, position)
        if found == NOWHERE:
            origins.append(NOWHERE)
            continue
        origins.append(start + found)
        position = found + 1
        if letter == "'" and raw[position : position + 1] == "'" and raw[:1] == "'":
            position += 1
    return Traced(value, tuple(origins), RAW * len(value))


def _indentation(raw: str, position: int, value: str, done: int) -> int:
    """Behind the indentation of the next line, unless the value itself goes on with spaces."""
    line_end = position
    while line_end < len(raw) and raw[line_end] in " \t":
        line_end += 1
    kept = 0
    while done + kept < len(value) and value[done + kept] in " \t":
        kept += 1
    return max(position, line_end - kept)
