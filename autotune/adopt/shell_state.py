"""Variables of a script, and the expansion of its words from them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from autotune.adopt.shell_syntax import Literal, Opaque, Parameter, Segment, Token
from autotune.adopt.traced import Traced, joined, split
from autotune.adopt.words import Word
from autotune.errors import SpecError
from autotune.space.expression import parse_expression

_ARITHMETIC = re.compile(r"\$\(\((.*)\)\)", re.DOTALL)
_DOLLAR = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")
_WHOLE = re.compile(r"-?\d+")


@dataclass(frozen=True, slots=True)
class Value:
    """What a variable holds: text, or the words of an array.

    `doubts` are parts of the text, from and to, that are only there under a condition that could not be decided.
    """

    text: Traced = field(default_factory=Traced)
    missing: tuple[str, ...] = ()
    unknown: bool = False
    elements: tuple[Word, ...] | None = None
    certain: bool = True
    doubts: tuple[tuple[int, int], ...] = ()

    def doubtful(self, start: int, end: int) -> bool:
        """Whether a part of the text may not be there."""
        return not self.certain or any(first < end and start < last for first, last in self.doubts)


@dataclass
class ShellState:
    """What is known while a script is read from top to bottom.

    Attributes:
        values: variables by name.
        exported: names that child processes see.
        positional: `$1`, `$2`, ...
    """

    values: dict[str, Value] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    positional: tuple[Word, ...] = ()

    @classmethod
    def with_values(cls, values: Mapping[str, str]) -> ShellState:
        """Variables that were given from outside."""
        return cls({name: Value(Traced.made(text)) for name, text in values.items()})

    def expand(self, tokens: Iterable[Token]) -> list[Word]:
        """The words of a command."""
        return [word for token in tokens for word in self.word(token)]

    def word(self, token: Token) -> list[Word]:
        """The words that one token becomes: none for an empty variable, several for an array."""
        builder = _Builder(token)
        for segment in token.segments:
            self._add(segment, builder)
        return builder.finish()

    def text(self, segments: Iterable[Segment]) -> Value:
        """Segments as one text, never split: an assignment, a test, a here document."""
        parts: list[Traced] = []
        missing: list[str] = []
        unknown, certain = False, True
        doubts: list[tuple[int, int]] = []
        for segment in segments:
            length = sum(map(len, parts))
            if isinstance(segment, Literal):
                parts.append(segment.text)
            elif isinstance(segment, Opaque):
                computed = self._computed(segment)
                parts.append(computed or segment.raw)
                unknown = unknown or computed is None
            else:
                value = self.value(segment)
                texts = [value.text] if value.elements is None else [word.text for word in value.elements]
                parts.append(joined(_spaced(texts)))
                missing += value.missing
                unknown, certain = unknown or value.unknown, certain and value.certain
                doubts += [(length + start, length + end) for start, end in value.doubts]
        return Value(joined(parts), tuple(missing), unknown, certain=certain, doubts=tuple(doubts))

    def value(self, parameter: Parameter) -> Value:
        """What a parameter stands for; its own source where that is not known."""
        if parameter.name in ("@", "*"):
            return Value(elements=self.positional)
        known = self.values.get(parameter.name)
        if known is None and parameter.name.isdigit() and 0 < int(parameter.name) <= len(self.positional):
            known = _of_word(self.positional[int(parameter.name) - 1])
        kind = parameter.operator.lstrip(":")
        empty = known is None or (parameter.operator.startswith(":") and known.elements is None and not known.text.text)
        if kind == "+":
            return Value() if empty else self.text(parameter.operand)
        if empty and kind in ("-", "="):
            return self._default(parameter, assign=kind == "=")
        if known is None:
            return Value(parameter.raw, missing=(parameter.name,))
        return known

    def _default(self, parameter: Parameter, *, assign: bool) -> Value:
        """The word behind `:-` or `:=`; where that is not known, the variable itself is what could be given."""
        value = self.text(parameter.operand)
        if value.unknown:
            value = replace(value, missing=(*value.missing, parameter.name))
        if assign:
            self.values[parameter.name] = value
        return value

    def _computed(self, opaque: Opaque) -> Traced | None:
        """`$((...))` of whole numbers that are known; None for anything else."""
        inner = _ARITHMETIC.fullmatch(opaque.raw.text)
        if inner is None:
            return None
        try:
            expression = parse_expression(_DOLLAR.sub(r"\1", inner.group(1)).strip())
            known = {name: self.values[name].text.text for name in expression.names if name in self.values}
            names = {name: int(text) for name, text in known.items() if _WHOLE.fullmatch(text)}
            result = expression.evaluate(names) if names.keys() == expression.names else None
        except SpecError:
            return None
        whole = isinstance(result, int | float) and not isinstance(result, bool) and result == int(result)
        return Traced.made(str(int(result))) if whole and isinstance(result, int | float) else None

    def _add(self, segment: Segment, builder: _Builder) -> None:
        if isinstance(segment, Literal):
            builder.literal(segment)
        elif isinstance(segment, Opaque):
            computed = self._computed(segment)
            builder.unknown = builder.unknown or computed is None
            builder.append(computed or segment.raw)
        else:
            value = self.value(segment)
            if value.elements is not None:
                builder.elements(value, quoted=segment.quoted)
            else:
                builder.value(value, quoted=segment.quoted, name=segment.name)


@dataclass
class _Builder:
    """Gathers the words of one token."""

    token: Token
    words: list[Word] = field(default_factory=list)
    parts: list[Traced] = field(default_factory=list)
    given: bool = False
    via: str = ""
    missing: list[str] = field(default_factory=list)
    unknown: bool = False
    certain: bool = True

    def append(self, text: Traced) -> None:
        self.parts.append(text)
        self.given = self.given or bool(text.text)

    def literal(self, segment: Literal) -> None:
        self.append(segment.text)
        self.given = self.given or segment.quoted

    def value(self, value: Value, *, quoted: bool, name: str) -> None:
        self.missing += value.missing
        self.unknown = self.unknown or value.unknown
        if not value.missing:
            self.via = self.via or name
        if quoted or value.missing or value.unknown:
            self.certain = self.certain and not value.doubtful(0, len(value.text))
            self.append(value.text)
            self.given = True
            return
        if value.text.text[:1].isspace():
            self._flush()
        start = 0
        for index, piece in enumerate(split(value.text)):
            if index:
                self._flush(via=name)
            start = value.text.text.index(piece.text, start)
            self.certain = self.certain and not value.doubtful(start, start + len(piece))
            start += len(piece)
            self.append(piece)
        if value.text.text[-1:].isspace():
            self._flush(via=name)

    def elements(self, value: Value, *, quoted: bool) -> None:
        words = list(value.elements or ())
        if not quoted:
            words = [part for word in words for part in _resplit(word)]
        if any(part.text for part in self.parts):
            self._flush()
        self.parts, self.given = [], False  # the quotes around an array are no word of their own
        self.words += [
            Word(w.text, w.start, w.end, w.via, w.missing, w.unknown, w.certain and value.certain) for w in words
        ]

    def _flush(self, via: str = "") -> None:
        if not self.given:
            return
        text = joined(self.parts)
        start, end = self.token.source.at(0), self.token.source.at(len(self.token.source))
        row = (text, start, end, self.via or via, tuple(self.missing), self.unknown, self.certain)
        self.words.append(Word(*row))
        self.parts, self.given, self.certain = [], False, True

    def finish(self) -> list[Word]:
        self._flush()
        return self.words


def _resplit(word: Word) -> list[Word]:
    if word.missing or word.unknown or not any(letter.isspace() for letter in word.plain):
        return [word] if word.plain else []
    return [Word(part, word.start, word.end, word.via, (), False, word.certain) for part in split(word.text)]


def _of_word(word: Word) -> Value:
    return Value(word.text, word.missing, word.unknown, certain=word.certain)


def _spaced(texts: list[Traced]) -> Iterator[Traced]:
    for index, text in enumerate(texts):
        if index:
            yield Traced.made(" ")
        yield text
