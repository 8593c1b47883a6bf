"""Reads a shell script from top to bottom, without running it, and says which commands it would start.

Assignments, arrays, exports, defaults, here documents and simple conditions are followed. A variable that the script
does not set counts as not set; what hangs on a command's output stays unknown and is named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from autotune.adopt.shell_state import ShellState, Value
from autotune.adopt.shell_syntax import Command, Literal, Token, read_commands
from autotune.adopt.shell_tests import decide
from autotune.adopt.traced import Traced, joined
from autotune.adopt.words import Word

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?=)")
_DECLARING = frozenset({"export", "declare", "typeset", "readonly", "local"})
_SKIPPED = frozenset({"do", "done", "time", "!"})
_TESTS = frozenset({"[", "[[", "test", "true", "false"})


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
    """One `if`, `case` or `{` that is open.

    Attributes:
        runs: what is read now would be executed; None where the condition could not be decided.
        taken: an earlier part of it was.
        subject: of a `case`, None where it is not known.
        doubted: an earlier part of a `case` may have been executed.
    """

    runs: bool | None
    taken: bool
    subject: str | None = None
    doubted: bool = False


def read_script(
    script: Traced, given: Mapping[str, str] | None = None, positional: tuple[Word, ...] = (),
    env: Mapping[str, Value] | None = None, files: Callable[[str], str | None] | None = None,
) -> ScriptReading:  # fmt: skip
    """See the module.

    Args:
        script: its text.
        given: variables that the reader of the file says.
        positional: `$1` and so on.
        env: variables that are set where the script is started.
        files: the text of a file beside the script, for what it reads in.
    """
    state = ShellState.with_values(given or {})
    state.positional = positional
    for name, value in (env or {}).items():
        state.values.setdefault(name, value)
    return _Interpreter(state, files or (lambda _: None)).whole(read_commands(script))


class _Interpreter:
    def __init__(self, state: ShellState, files: Callable[[str], str | None]) -> None:
        self.state, self.reading, self.files = state, ScriptReading(), files
        self.inside: list[str] = []
        self.functions: dict[str, list[Command]] = {}
        self.called: set[str] = set()
        self.branches: list[_Branch] = []
        self.succeeded: bool | None = True
        self.tested = False

    def whole(self, commands: list[Command]) -> ScriptReading:
        """The script; a function that nothing in it calls is read as if it were, with no arguments."""
        self.run(commands)
        for name in [name for name in self.functions if name not in self.called]:
            self._call(name, ())
        return self.reading

    def run(self, commands: list[Command]) -> None:
        index = 0
        while index < len(commands):
            end = self._function(commands, index)
            index = end if end else self._step(commands, index)

    def _function(self, commands: list[Command], index: int) -> int:
        """`name() { ... }`: keeps the body; the index behind it, 0 where no function begins."""
        tokens = commands[index].tokens
        words = [token.plain for token in tokens]
        opens = commands[index + 1] if index + 1 < len(commands) else None
        if words[0] == "function" and words[2:3] == ["{"]:
            name, body = words[1], [_without(_without(commands[index], "function"), words[1]), *commands[index + 1 :]]
        elif opens is not None and opens.before == ")" and opens.tokens[0].plain == "{":
            name, body = words[-1], commands[index + 1 :]
        else:
            return 0
        depth = 0
        for length, command in enumerate(body, 1):
            depth += sum({"{": 1, "}": -1}.get(token.plain, 0) for token in command.tokens)
            if depth == 0:
                self.functions[name] = body[:length]
                return index + length + len(commands[index + 1 :]) - len(body) + 1
        return 0

    def _call(self, name: str, arguments: tuple[Word, ...]) -> None:
        if name in self.inside:  # a function that calls itself
            return
        self.called.add(name)
        self.inside.append(name)
        before, self.state.positional = self.state.positional, arguments
        self.run(list(self.functions[name]))
        self.state.positional = before
        self.inside.pop()

    @property
    def _runs(self) -> bool | None:
        """Whether what is read now would be executed; None where that is not known."""
        states = [branch.runs for branch in self.branches]
        if False in states:
            return False
        return None if None in states else True

    def _step(self, commands: list[Command], index: int) -> int:
        """Read one command; the index of the next one."""
        command = commands[index]
        word = command.tokens[0].plain
        if word in ("if", "elif"):
            return self._condition(commands, index, first=word == "if")
        if word == "else":
            self._otherwise()
        elif word == "{":
            linked = self._linked(command.before)
            self.branches.append(_Branch(linked, bool(linked)))
        elif word in ("fi", "esac", "}"):
            if self.branches:
                self.branches.pop()
        elif word == "case":
            return self._case(commands, index)
        elif word in ("for", "while", "until", "function"):
            return index + 1
        rest = command
        if word in ("then", "else", "fi", "esac", "{", "}", *_SKIPPED):
            rest = _without(command, word)
            if rest.tokens and rest.tokens[0].plain in ("if", "elif", "fi", "case", "for", "while", "{", "}"):
                commands[index] = rest
                return index
        if command.before == ";;" and self.branches and word not in ("esac", "}"):
            return self._pattern(commands, index)
        return self._linked_step(rest, commands, index) if rest.tokens else index + 1

    def _linked_step(self, command: Command, commands: list[Command], index: int) -> int:
        """A command that may hang on the one before it by `&&` or `||`; the index of the next one."""
        linked = self._linked(command.before)
        if command.tokens[0].plain in _TESTS:
            tests = [command]
            while command.tokens[0].plain == "[[" and not _closes(tests[-1]) and index + 1 < len(commands):
                index += 1
                tests.append(commands[index])
            if linked is not False and self._runs is not False:
                result = self._decided(tests)
                self.succeeded, self.tested = result if linked else None, True
            return index + 1
        self.branches.append(_Branch(linked, bool(linked)))
        self._simple(command)
        self.branches.pop()
        if linked is not False:
            self.succeeded, self.tested = linked, linked is None
        return index + 1

    def _linked(self, before: str) -> bool | None:
        """Whether a command runs after the one in front of it; a command that is no test is taken to succeed."""
        if before == "&&":
            return self.succeeded
        if before == "||":
            return not self.succeeded if self.tested and self.succeeded is not None else None
        return True

    def _decided(self, tests: list[Command]) -> bool | None:
        result, names = decide(tests, self.state)
        self.reading.conditions += [name for name in names if name not in self.reading.conditions]
        return result

    def _case(self, commands: list[Command], index: int) -> int:
        """`case WORD in`, with the first pattern behind `in` or on the next line."""
        tokens = commands[index].tokens
        value = self.state.text(tokens[1].segments) if len(tokens) > 1 else Value(unknown=True)
        self.reading.conditions += [name for name in value.missing if name not in self.reading.conditions]
        known = not value.unknown and value.certain and not value.doubts
        subject = ("" if value.missing else value.text.text) if known else None
        self.branches.append(_Branch(False, False, subject))
        if len(tokens) > 3:
            rest = Command(tokens[3:], ";;", commands[index].documents, commands[index].output)
            commands[index] = rest
            return self._pattern(commands, index)
        return self._pattern(commands, index + 1)

    def _pattern(self, commands: list[Command], index: int) -> int:
        """`one|other)`: whether what stands behind it runs."""
        patterns: list[Token] = []
        while index < len(commands) and (not patterns or commands[index].before == "|"):
            if commands[index].tokens[0].plain == "esac":
                return index
            patterns += commands[index].tokens
            index += 1
        branch = self.branches[-1]
        texts = [self.state.text(token.segments) for token in patterns]
        matched: bool | None = None
        if any(text.text.text == "*" for text in texts):
            matched = True
        elif branch.subject is not None and not any(text.unknown or text.missing for text in texts):
            matched = any(fnmatchcase(branch.subject, text.text.text) for text in texts)
        if branch.taken:
            branch.runs = False
        else:
            branch.runs = None if matched and branch.doubted else matched
        branch.taken = branch.taken or branch.runs is True
        branch.doubted = branch.doubted or branch.runs is None
        return index

    def _condition(self, commands: list[Command], index: int, *, first: bool) -> int:
        tests = [_without(commands[index], commands[index].tokens[0].plain)]
        index += 1
        while index < len(commands) and commands[index].tokens[0].plain != "then":
            tests.append(commands[index])
            index += 1
        result = self._decided(tests)
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
            for word in self.state.expand(tokens[1:2]):
                self._read_in(word)
            return
        if head == "set" and len(tokens) > 1 and tokens[1].plain == "--":
            self.state.positional = tuple(self.state.expand(tokens[2:]))
            return
        if head == "shift":
            count = tokens[1].plain if len(tokens) > 1 else "1"
            self.state.positional = self.state.positional[int(count) if count.isdigit() else 1 :]
            return
        if head in self.functions:
            self._call(head, tuple(self.state.expand(tokens[1:])))
            return
        self._keep_document(command)
        exported = [(name, self.state.values[name]) for name in sorted(self.state.exported & self.state.values.keys())]
        words = tuple(self.state.expand(tokens))
        if words:
            self.reading.calls.append(Call(words, (*exported, *prefix), certain=runs is True))

    def _read_in(self, word: Word) -> None:
        """A script beside this one is followed; what it says stands nowhere in this file."""
        name = word.plain.rpartition("/")[2] if not word.resolved else word.plain  # "$(dirname "$0")/env.sh"
        text = self.files(name) if name not in self.inside else None
        if text is None:
            self.reading.sourced.append(word.plain)
            return
        self.inside.append(name)
        open_before = len(self.branches)
        self.run(read_commands(Traced.made(text)))
        del self.branches[open_before:]
        self.inside.pop()

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
        if before is not None and before.elements is None:
            if sign == "+=":
                return _appended(before, value, certain=certain)
            start = len(before.text)
            if not certain and start and value.text.text.startswith(before.text.text):  # A="$A more"
                return replace(value, doubts=(*before.doubts, (start, len(value.text))), certain=before.certain)
        return replace(value, certain=value.certain and certain)

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


def _appended(before: Value, value: Value, *, certain: bool) -> Value:
    """`NAME+=text`: only what was added is doubtful where the condition is."""
    start, end = len(before.text), len(before.text) + len(value.text)
    added = tuple((start + first, start + last) for first, last in value.doubts)
    doubts = added if certain and value.certain else ((start, end),)
    return Value(
        joined([before.text, value.text]), (*before.missing, *value.missing), before.unknown or value.unknown,
        certain=before.certain, doubts=(*before.doubts, *doubts),
    )  # fmt: skip


def _closes(command: Command) -> bool:
    return any(token.plain == "]]" for token in command.tokens)


def _doubted(word: Word) -> Word:
    return Word(word.text, word.start, word.end, word.via, word.missing, word.unknown, False)
