"""Takes a shell script apart into simple commands, without running anything.

Understands quotes, comments, line continuation, here documents, parameters with their operators, arrays and command
substitution as one opaque piece. What it does not understand stays text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypeAlias

from autotune.adopt.traced import BARE, DOUBLE, SINGLE, Traced

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
_OPERATOR = re.compile(r":?[-=+?]|##?|%%?|//?|\^\^?|,,?|:")
_REDIRECTION = re.compile(r"(?:\d+|&)?(?:>>|>\||>&|<&|<<<|<<-?|<>|>|<)")
_BREAKS = ("&&", "||", ";;", ";", "|&", "|", "&", "\n", "(", ")")


@dataclass(frozen=True, slots=True)
class Literal:
    """Text as it is; `quoted` text is never split or taken for an operator."""

    text: Traced
    quoted: bool


@dataclass(frozen=True, slots=True)
class Parameter:
    """`$NAME`, `${NAME}`, `${NAME:-word}`, `"${NAME[@]}"`.

    Attributes:
        name: of the variable.
        operator: `:-`, `:+`, ... or empty.
        operand: what stands behind the operator.
        array: all elements are meant.
        quoted: inside double quotes.
        raw: the source.
    """

    name: str
    operator: str
    operand: tuple[Segment, ...]
    array: bool
    quoted: bool
    raw: Traced


@dataclass(frozen=True, slots=True)
class Opaque:
    """`$(...)`, backticks, arithmetic: nothing that can be known without running it."""

    raw: Traced


Segment: TypeAlias = Literal | Parameter | Opaque


@dataclass(frozen=True, slots=True)
class Token:
    """One word before expansion; `start` and `end` are offsets in the script (`end` behind closing quotes)."""

    segments: tuple[Segment, ...]
    source: Traced
    elements: tuple[Token, ...] | None = None
    """Words of `NAME=( ... )`."""

    @property
    def plain(self) -> str:
        """The text where nothing is quoted or expanded, else empty: keywords and operators are such."""
        if all(isinstance(part, Literal) and not part.quoted for part in self.segments):
            return "".join(part.text.text for part in self.segments if isinstance(part, Literal))
        return ""


@dataclass(frozen=True)
class Command:
    """A simple command.

    Attributes:
        tokens: its words, assignments included.
        before: what stands between it and the one before, such as `&&` or a new line.
        documents: bodies of its here documents.
        output: the file that its output goes to, where that is a plain word.
    """

    tokens: tuple[Token, ...]
    before: str = "\n"
    documents: tuple[tuple[Segment, ...], ...] = ()
    output: tuple[Token, ...] = ()


@dataclass
class _Open:
    """A command that is being read."""

    tokens: list[Token] = field(default_factory=list)
    documents: list[tuple[Segment, ...]] = field(default_factory=list)
    output: list[Token] = field(default_factory=list)


def read_commands(script: Traced) -> list[Command]:
    """The simple commands of a script in their order."""
    return _Reader(script).commands()


def read_text(text: Traced, *, dollars: bool = False) -> tuple[Segment, ...]:
    """Text with parameters but without quotes: a here document, or a value of a compose file.

    Args:
        dollars: `$$` is one dollar sign, as in compose files.
    """
    return _Reader(text, dollars=dollars).free_text()


class _Reader:
    def __init__(self, source: Traced, *, dollars: bool = False) -> None:
        self.source, self.text, self.at, self.dollars = source, source.text, 0, dollars
        self.pending: list[tuple[_Open, str, bool, bool]] = []

    # -- commands ----------------------------------------------------------------------------------------------------

    def commands(self) -> list[Command]:
        found: list[Command] = []
        before, current = "\n", _Open()
        done: list[tuple[_Open, str]] = []
        while self.at < len(self.text):
            self._skip_blank()
            sign = self._separator()
            if sign:
                done.append((current, before))
                # The end of a branch of `case` counts for what comes next, on whichever line.
                before, current = (sign if current.tokens or before != ";;" else before), _Open()
                if sign == "\n":
                    self._read_documents()
            elif self.at < len(self.text) and not self._redirect(current):
                current.tokens.append(self._token())
        self._read_documents()
        for command, sign in [*done, (current, before)]:
            if command.tokens:
                row = (tuple(command.tokens), sign, tuple(command.documents), tuple(command.output))
                found.append(Command(*row))
        return found

    def _skip_blank(self) -> None:
        while self.at < len(self.text):
            if self.text.startswith("\\\n", self.at):
                self.at += 2
            elif self.text.startswith("\\\r\n", self.at):
                self.at += 3
            elif self.text[self.at] in " \t\r":
                self.at += 1
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def _separator(self) -> str:
        if _REDIRECTION.match(self.text, self.at):
            return ""
        for sign in _BREAKS:
            if self.text.startswith(sign, self.at):
                self.at += len(sign)
                return sign
        return ""

    def _redirect(self, current: _Open) -> bool:
        match = _REDIRECTION.match(self.text, self.at)
        if match is None:
            return False
        sign = match.group().lstrip("0123456789&")
        self.at = match.end()
        self._skip_blank()
        if self.at >= len(self.text) or self.text[self.at] == "\n":
            return True
        target = self._token()
        if sign in ("<<", "<<-"):
            quoted = any(isinstance(part, Literal) and part.quoted for part in target.segments)
            word = "".join(part.text.text for part in target.segments if isinstance(part, Literal))
            self.pending.append((current, word, quoted, sign == "<<-"))
        elif sign in (">", ">>", ">|"):
            current.output.append(target)
        return True

    def _read_documents(self) -> None:
        for command, word, quoted, tabs in self.pending:
            start = self.at
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line = self.text[self.at : end]
                last, self.at = self.at, min(end + 1, len(self.text))
                if (line.lstrip("\t") if tabs else line).rstrip("\r") == word:
                    break
            else:
                last = self.at
            body = self.source[start:last]
            command.documents.append((Literal(body, True),) if quoted else read_text(body))
        self.pending.clear()

    # -- words -------------------------------------------------------------------------------------------------------

    def _token(self) -> Token:
        start = self.at
        segments: list[Segment] = []
        while self.at < len(self.text) and not self._ends_word():
            if self.text[self.at] == "(" and segments and _assigns(segments):
                return Token(tuple(segments), self.source[start : self.at], self._array())
            segments.extend(self._segment())
        if self.at == start:  # a lone sign that starts nothing: never stand still
            segments.append(Literal(self.source[start : start + 1].quoted(BARE), False))
            self.at += 1
        return Token(tuple(segments), self.source[start : self.at])

    def _ends_word(self) -> bool:
        letter = self.text[self.at]
        return letter in " \t\r\n;&|<>()" and not (letter == "(" and self.text[self.at - 1 : self.at] == "=")

    def _segment(self) -> list[Segment]:
        letter = self.text[self.at]
        if letter == "'":
            return [self._single()]
        if letter == '"':
            return self._double()
        if letter == "\\":
            self.at += 2
            if self.text[self.at - 1 : self.at] == "\n":
                return []
            return [Literal(self.source[self.at - 1 : self.at].quoted(BARE), True)]
        if letter in "$`":
            return [self._dollar(quoted=False)]
        start = self.at
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] not in "'\"\\$`(" and not self._ends_word():
            self.at += 1
        return [Literal(self.source[start : self.at].quoted(BARE), False)]

    def _single(self) -> Literal:
        end = self.text.find("'", self.at + 1)
        end = len(self.text) if end < 0 else end
        inner = self.source[self.at + 1 : end].quoted(SINGLE)
        self.at = min(end + 1, len(self.text))
        return Literal(inner, True)

    def _double(self) -> list[Segment]:
        self.at += 1
        segments: list[Segment] = [Literal(Traced(), True)]
        while self.at < len(self.text) and self.text[self.at] != '"':
            letter = self.text[self.at]
            if letter == "\\" and self.text[self.at + 1 : self.at + 2] in ("\\", '"', "$", "`", "\n"):
                if self.text[self.at + 1] != "\n":
                    segments.append(Literal(self.source[self.at + 1 : self.at + 2].quoted(DOUBLE), True))
                self.at += 2
            elif letter in "$`":
                segments.append(self._dollar(quoted=True))
            else:
                start = self.at
                self.at += 1
                while self.at < len(self.text) and self.text[self.at] not in '"\\$`':
                    self.at += 1
                segments.append(Literal(self.source[start : self.at].quoted(DOUBLE), True))
        self.at = min(self.at + 1, len(self.text))
        return segments

    def free_text(self) -> tuple[Segment, ...]:
        """See `read_text`."""
        segments: list[Segment] = []
        while self.at < len(self.text):
            if self.dollars and self.text.startswith("$$", self.at):
                segments.append(Literal(self.source[self.at : self.at + 1], True))
                self.at += 2
            elif self.text[self.at] == "$" or (self.text[self.at] == "`" and not self.dollars):
                segments.append(self._dollar(quoted=True))
            else:
                start = self.at
                self.at += 1
                while self.at < len(self.text) and self.text[self.at] not in "$`":
                    self.at += 1
                segments.append(Literal(self.source[start : self.at], True))
        return tuple(segments)

    def _array(self) -> tuple[Token, ...]:
        self.at += 1
        elements: list[Token] = []
        while self.at < len(self.text):
            self._skip_blank()
            if self.at >= len(self.text):
                break
            if self.text[self.at] == ")":
                self.at += 1
                break
            if self.text[self.at] in "\n;&|":
                self.at += 1
                continue
            elements.append(self._token())
        return tuple(elements)

    # -- parameters --------------------------------------------------------------------------------------------------

    def _dollar(self, *, quoted: bool) -> Segment:
        start = self.at
        if self.text[start] == "`":
            end = self.text.find("`", start + 1)
            self.at = len(self.text) if end < 0 else end + 1
            return Opaque(self.source[start : self.at])
        following = self.text[start + 1 : start + 2]
        if following == "(" and not self.dollars:
            self.at = self._closing(start + 1, "(", ")")
            return Opaque(self.source[start : self.at])
        if following == "{":
            return self._braced(start, quoted)
        name = _NAME.match(self.text, start + 1)
        if name is None or (self.dollars and not (name.group()[0].isalpha() or name.group()[0] == "_")):
            self.at = start + 1
            return Literal(self.source[start : self.at].quoted(DOUBLE if quoted else BARE), quoted)
        self.at = name.end()
        return Parameter(name.group(), "", (), name.group() in "@*", quoted, self.source[start : self.at])

    def _braced(self, start: int, quoted: bool) -> Segment:
        end = self._closing(start + 1, "{", "}")
        self.at = end
        raw, inner = self.source[start:end], self.source[start + 2 : end - 1]
        name = _NAME.match(inner.text)
        if name is None:
            return Opaque(raw)
        rest = inner[name.end() :]
        array = rest.text.startswith(("[@]", "[*]")) or name.group() in ("@", "*")
        if rest.text.startswith(("[@]", "[*]")):
            rest = rest[3:]
        elif rest.text.startswith("["):
            return Opaque(raw)
        if not rest.text:
            return Parameter(name.group(), "", (), array, quoted, raw)
        operator = _OPERATOR.match(rest.text)
        if operator is None or operator.group().lstrip(":") not in ("-", "=", "+", "?"):
            return Opaque(raw)
        operand = _Reader(rest[operator.end() :], dollars=self.dollars)
        segments = operand.free_text() if self.dollars else operand.operand(quoted=quoted)
        return Parameter(name.group(), operator.group(), segments, array, quoted, raw)

    def operand(self, *, quoted: bool) -> tuple[Segment, ...]:
        """The word behind an operator: quotes count, white space does not end it."""
        segments: list[Segment] = []
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter in "'\"\\$`":
                segments.extend(self._segment())
            else:
                self.at += 1
                segments.append(Literal(self.source[self.at - 1 : self.at].quoted(DOUBLE if quoted else BARE), quoted))
        return tuple(segments)

    def _closing(self, start: int, opening: str, closing: str) -> int:
        """Behind the bracket that closes the one at `start`; quotes inside are stepped over."""
        depth, at, quote = 0, start, ""
        while at < len(self.text):
            letter = self.text[at]
            if letter == "\\":
                at += 1
            elif quote:
                quote = "" if letter == quote else quote
            elif letter in "'\"" and opening == "(":
                quote = letter
            elif letter == opening:
                depth += 1
            elif letter == closing:
                depth -= 1
                if depth == 0:
                    return at + 1
            at += 1
        return len(self.text)


def _assigns(segments: list[Segment]) -> bool:
    """The word so far is `NAME=` or `NAME+=`, so that a bracket opens an array."""
    text = "".join(part.text.text if isinstance(part, Literal) else "$" for part in segments)
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*\+?=", text) is not None
