"""Decides simple conditions of a script: `[ "$A" = b ]`, `[[ -n $A ]]`, `(( ... ))` not, commands not."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.adopt.shell_state import ShellState
from autotune.adopt.shell_syntax import Command

_NUMERIC = {"-eq": int.__eq__, "-ne": int.__ne__, "-gt": int.__gt__, "-ge": int.__ge__, "-lt": int.__lt__,
            "-le": int.__le__}  # fmt: skip


def decide(tests: Sequence[Command], state: ShellState) -> tuple[bool | None, tuple[str, ...]]:
    """The condition's result, None where it cannot be known, and the variables from outside that it read.

    A variable that is set nowhere counts as not set, as in a plain shell.
    """
    result: bool | None = None
    names: list[str] = []
    for index, test in enumerate(tests):
        value, read = _decide_one(test, state)
        names += read
        if index == 0 or test.before not in ("&&", "||"):
            result = value
        elif test.before == "&&":
            result = False if result is False or value is False else (None if None in (result, value) else True)
        else:
            result = True if result is True or value is True else (None if None in (result, value) else False)
    return result, tuple(names)


def _decide_one(test: Command, state: ShellState) -> tuple[bool | None, list[str]]:
    words: list[str] = []
    names: list[str] = []
    bracketed = False
    for token in test.tokens:
        if token.plain in ("[", "[[", "]", "]]", "test"):
            bracketed = True
            continue
        value = state.text(token.segments)
        names += value.missing
        if value.unknown or not value.certain:
            return None, names
        # What is not set is empty; the name that stands for it is only for people.
        words.append("" if value.missing and _only_missing(token.source.text) else value.text.text)
    if words in (["true"], [":"], ["false"]):
        return words != ["false"], names
    if not bracketed and test.before not in ("&&", "||"):
        return None, names
    negated = words[:1] == ["!"]
    result = _evaluate(words[1:] if negated else words)
    return (not result if negated and result is not None else result), names


def _only_missing(source: str) -> bool:
    return source.strip("\"'").startswith("$")


def _evaluate(words: list[str]) -> bool | None:
    if len(words) == 1:
        return bool(words[0])
    if len(words) == 2 and words[0] in ("-n", "-z"):
        return bool(words[1]) == (words[0] == "-n")
    if len(words) != 3:
        return None
    left, sign, right = words
    if sign in ("=", "=="):
        return None if set(right) & set("*?[") else left == right
    if sign == "!=":
        return None if set(right) & set("*?[") else left != right
    if sign in _NUMERIC:
        try:
            return bool(_NUMERIC[sign](int(left), int(right)))
        except ValueError:
            return False if not left or not right else None
    return None
