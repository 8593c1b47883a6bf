"""Reads a shell script from top to bottom, without running it, and says which commands it would start.

Assignments, arrays, exports, defaults, here documents and simple conditions are followed. A variable that the script
does not set counts as not set; what hangs on a command's output stays unknown and is named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.adopt.shell_state import ShellState, Value
from autotune.adopt.shell_syntax import Command, Literal, Token, read_commands
from autotune.adopt.shell_tests import decide
from autotune.adopt.traced import Traced, joined
from autotune.adopt.words import Word

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?=)")
_DECLARING = frozenset({"export", "declare", "typeset", "readonly", "local"})
_SKIPPED = frozenset({"do", "done", "{", "}", "time", "!", "esac"})


@dataclass(frozen=True)
class Call:
    """A command that the script would start.

    Attributes:
        words: the command and its arguments.
        env: variables that it gets, in the order of their assignment.
        certain: False where it is only reached under a condition that could not be decided.
    """

    words: tuple[Word, ...]
    env: tuple[tuple[str, Value], ...]
    certain: bool = True


@dataclass
class ScriptReading:
    """What a script would do.

    Attributes:
        calls: commands in their order.
        files: texts that it writes with here documents, by the path as it is written.
        conditions: variables that decided a condition and are set outside.
        sourced: files that it reads in.
    """

    calls: list[Call] = field(default_factory=list)
    files: dict[str, Value] = field(default_factory=dict)
    conditions: list[str] = field(default_factory=list)
    sourced: list[str] = field(default_factory=list)


@dataclass
class _Branch:
    """One `if` that is open. `runs` is None where the condition could not be decided."""

    runs: bool | None
    taken: bool


def read_script(
    script: Traced, given: Mapping[str, str] | None = None, positional: tuple[Word, ...] = (),
    env: Mapping[str, Value] | None = None,
) -> ScriptReading:  # fmt: skip
    """See the module.

    Args:
        script: its text.
        given: variables that the reader of the file says.
        positional: `$1` and so on.
        env: variables that are set where the script is started.
    """
    state = ShellState.with_values(given or {})
    state.positional = positional
    for name, value in (env or {}).items():
        state.values.setdefault(name, value)
    return _Interpreter(state).run(read_commands(script))


class _Interpreter:
    def __init__(self, state: ShellState) -> None:
        self.state, self.reading = state, ScriptReading()
        self.branches: list[_Branch] = []
        self.cases = 0

    def run(self, commands: list[Command]) -> ScriptReading:
        index = 0
        while index < len(commands):
            index = self._step(commands, index)
        return self.reading

    @property
    def _runs(self) -> bool | None:
        """Whether what is read now would be executed; None where that is not known."""
        states = [branch.runs for branch in self.branches]
        if False in states:
            return False
        return None if None in states or self.cases else True

    def _step(self, commands: list[Command], index: int) -> int:
        """Read one command; the index of the next one."""
        command = commands[index]
        word = command.tokens[0].plain
        if word in ("if", "elif"):
            return self._condition(commands, index, first=word == "if")
        if word == "else":
            self._otherwise()
        elif word == "fi":
            if self.branches:
                self.branches.pop()
        elif word == "case":
            self.cases += 1
            return index + 1
        elif word == "esac":
            self.cases = max(0, self.cases - 1)
        elif word in ("for", "while", "until", "function"):
            return index + 1
        rest = _without(command, word) if word in ("then", "else", "fi", *_SKIPPED) else command
        if rest.tokens and rest is not command:
            return self._inner(rest, commands, index)
        if rest.tokens:
            self._simple(rest)
        return index + 1

    def _inner(self, rest: Command, commands: list[Command], index: int) -> int:
        """What stands on the same line behind a keyword."""
        if rest.tokens[0].plain in ("if", "elif", "fi", "case", "for", "while"):
            commands[index] = rest
            return index
        self._simple(rest)
        return index + 1

    def _condition(self, commands: list[Command], index: int, *, first: bool) -> int:
        tests = [_without(commands[index], commands[index].tokens[0].plain)]
        index += 1
        while index < len(commands) and commands[index].tokens[0].plain != "then":
            tests.append(commands[index])
            index += 1
        result, names = decide(tests, self.state)
        self.reading.conditions += [name for name in names if name not in self.reading.conditions]
        if first:
            self.branches.append(_Branch(result, bool(result)))
        elif self.branches:
            branch = self.branches[-1]
            branch.runs = False if branch.taken else (result if branch.runs is False else None)
            branch.taken = branch.taken or bool(result)
        return index

    def _otherwise(self) -> None:
        if self.branches:
            branch = self.branches[-1]
            branch.runs = False if branch.taken else (None if branch.runs is None else True)

    # -- simple commands ---------------------------------------------------------------------------------------------

    def _simple(self, command: Command) -> None:
        runs = self._runs
        if runs is False:
            return
        prefix: list[tuple[str, Value]] = []
        tokens = list(command.tokens)
        while tokens and (match := _assignment(tokens[0])):
            prefix.append((match[0], self._assigned(match, tokens.pop(0), certain=runs is True)))
        if not tokens:
            self.state.values.update(prefix)
            return
        head = tokens[0].plain
        if head in _DECLARING:
            self._declare(tokens[1:], exported=head == "export", certain=runs is True)
            return
        if head in (".", "source"):
            self.reading.sourced += [word.plain for word in self.state.expand(tokens[1:2])]
            return
        if head == "set" and len(tokens) > 1 and tokens[1].plain == "--":
            self.state.positional = tuple(self.state.expand(tokens[2:]))
            return
        self._keep_document(command)
        exported = [(name, self.state.values[name]) for name in sorted(self.state.exported & self.state.values.keys())]
        words = tuple(self.state.expand(tokens))
        if words:
            self.reading.calls.append(Call(words, (*exported, *prefix), certain=runs is True))

    def _declare(self, tokens: list[Token], *, exported: bool, certain: bool) -> None:
        for token in tokens:
            match = _assignment(token)
            if match:
                self.state.values[match[0]] = self._assigned(match, token, certain=certain)
            if exported and not token.plain.startswith("-"):
                self.state.exported.add(match[0] if match else token.plain)

    def _assigned(self, match: tuple[str, str, int], token: Token, *, certain: bool) -> Value:
        name, sign, length = match
        before = self.state.values.get(name)
        if token.elements is not None:
            elements = tuple(self.state.expand(token.elements))
            if sign == "+=" and before is not None and before.elements is not None:
                added = tuple(_doubted(word) for word in elements) if not certain else elements
                return Value(elements=(*before.elements, *added), certain=before.certain)
            return Value(elements=elements, certain=certain)
        value = self.state.text(_behind(token, length))
        text = value.text
        if sign == "+=" and before is not None and before.elements is None:
            text = joined([before.text, text])
            return Value(text, (*before.missing, *value.missing), before.unknown or value.unknown, certain=certain)
        return Value(text, value.missing, value.unknown, certain=certain)

    def _keep_document(self, command: Command) -> None:
        """`cat > file <<EOF`, `tee file <<EOF`."""
        if not command.documents:
            return
        targets = list(command.output)
        if command.tokens[0].plain == "tee":
            targets += [token for token in command.tokens[1:] if not token.plain.startswith("-")]
        for target in targets:
            name = self.state.text(target.segments).text.text
            self.reading.files[name] = self.state.text(command.documents[-1])


def _assignment(token: Token) -> tuple[str, str, int] | None:
    """(name, `=` or `+=`, length of both) where the token is an assignment."""
    if not token.segments or not isinstance(token.segments[0], Literal) or token.segments[0].quoted:
        return None
    match = _ASSIGNMENT.match(token.segments[0].text.text)
    return (match.group(1), match.group(2), match.end()) if match else None


def _behind(token: Token, length: int) -> tuple[Literal, ...]:
    """The segments behind `NAME=`."""
    first = token.segments[0]
    assert isinstance(first, Literal)
    return (Literal(first.text[length:], first.quoted), *token.segments[1:])  # type: ignore[arg-type]


def _without(command: Command, word: str) -> Command:
    """The command without the keyword in front."""
    tokens = command.tokens[1:] if command.tokens[0].plain == word else command.tokens
    return Command(tokens, command.before, command.documents, command.output)


def _doubted(word: Word) -> Word:
    return Word(word.text, word.start, word.end, word.via, word.missing, word.unknown, False)
