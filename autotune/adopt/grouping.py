"""Takes a command line apart into arguments: which words belong to which one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.adopt.words import Word
from autotune.space.arguments import ArgumentTable
from autotune.space.argv import parse_argv
from autotune.space.config import EngineConfig, FrozenValue
from autotune.space.renames import argument_renames, parse_version

_NEGATIVE = re.compile(r"-\d+(\.\d+)?([eE][+-]?\d+)?")
_FLAG = re.compile(r"--?[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Group:
    """One argument as it is written: flag, values, and what they mean.

    Attributes:
        words: the flag first.
        known: this vLLM takes the flag.
        args: names and values that it gives; for an unknown flag a best reading under its own name.
    """

    words: tuple[Word, ...]
    known: bool
    args: tuple[tuple[str, FrozenValue], ...]

    @property
    def flag(self) -> str:
        """The flag without its value."""
        return self.words[0].plain.partition("=")[0]

    @property
    def resolved(self) -> bool:
        """Every word is known."""
        return all(word.resolved for word in self.words)


@dataclass(frozen=True, slots=True)
class Grouped:
    """A whole command line: its groups, and the words that belong to none (the model)."""

    groups: tuple[Group, ...]
    positional: tuple[Word, ...]


def group_words(words: Sequence[Word], table: ArgumentTable) -> Grouped:
    """Groups in their order. Never raises."""
    groups: list[Group] = []
    positional: list[Word] = []
    index = 0
    while index < len(words):
        word = words[index]
        if not _is_flag(word.plain):
            positional.append(word)
            index += 1
            continue
        following = index + 1
        while following < len(words) and not _is_flag(words[following].plain):
            following += 1
        group = _group(list(words[index:following]), table)
        groups.append(group)
        index += len(group.words)
    return Grouped(tuple(groups), tuple(positional))


def whole_config(grouped: Grouped, table: ArgumentTable) -> EngineConfig:
    """What the command line means as a whole: repeated flags add up or the last one wins, as in vLLM."""
    known = [group for group in grouped.groups if group.known and group.resolved]
    config, _ = parse_argv([word.plain for group in known for word in group.words], table)
    return EngineConfig.of({name: _switched(name, value) for name, value in config.args})


def _switched(name: str, value: FrozenValue) -> FrozenValue:
    """vLLM reads `True` behind a dotted name as a text and its validation makes a switch of it."""
    return {"True": True, "False": False}.get(value, value) if "." in name and isinstance(value, str) else value


def _is_flag(text: str) -> bool:
    return bool(_FLAG.match(text)) and not _NEGATIVE.fullmatch(text)


def _group(words: list[Word], table: ArgumentTable) -> Group:
    """The longest run of words that the flag takes."""
    tokens = [word.plain for word in words]
    config, left = parse_argv(tokens, table)
    if _is_opposite(tokens[0], table) or _unknown(tokens[0], left):
        taken = words[:1] if "=" in tokens[0] or _was_switch(tokens[0]) else words[:2]
        return Group(tuple(taken), False, _guess(taken))
    said = _word_behind_switch(tokens, table)
    if said is not None:
        return Group(tuple(words[:2]), False, said)
    used = len(words)
    while used > 1:
        shorter, _ = parse_argv(tokens[: used - 1], table)
        if shorter != config:
            break
        used -= 1
    return Group(tuple(words[:used]), True, config.args)


def _is_opposite(token: str, table: ArgumentTable) -> bool:
    """`--disable-x` for `--enable-x`, which vLLM takes from 0.33 on."""
    flag = token.partition("=")[0].replace("_", "-")
    return flag.startswith("--disable-") and flag not in table.by_flag and parse_version(table.version) < (0, 33)


def _word_behind_switch(tokens: Sequence[str], table: ArgumentTable) -> tuple[tuple[str, FrozenValue], ...] | None:
    """What `--switch true` is meant to say, which argparse does not take; None for anything else."""
    argument = table.by_beginning(tokens[0].replace("_", "-"))
    if argument is None or argument.kind not in ("switch", "true") or len(tokens) < 2:
        return None
    value = {"true": True, "false": False}.get(tokens[1].lower())
    return None if value is None else ((argument.name, value),)


def _was_switch(flag: str) -> bool:
    """A switch of an older vLLM: what follows it is not its value."""
    rule = argument_renames().get(flag.lstrip("-").replace("-", "_"))
    return rule is not None and rule.negate


def _unknown(flag: str, left: Sequence[str]) -> bool:
    """The parser gave the flag back, in one of its spellings."""
    return bool(left) and left[0].replace("_", "-") == flag.replace("_", "-")


def _guess(words: Sequence[Word]) -> tuple[tuple[str, FrozenValue], ...]:
    flag, equals, joined = words[0].plain.partition("=")
    name = flag.lstrip("-").replace("-", "_")
    text = joined if equals else (words[1].plain if len(words) > 1 else None)
    if flag.startswith("-O"):
        return _compilation(words[0].plain, text)
    if text is None:
        if name.startswith("no_"):
            return ((name[3:], False),)
        return ((name, True),)
    return ((name, plain_value(text)),)


def _compilation(token: str, text: str | None) -> tuple[tuple[str, FrozenValue], ...]:
    """`-O.key=value`, `-O {...}`: how earlier versions took the compilation's settings."""
    key = token[2:].partition("=")[0]
    words = [f"-cc{key}", text or ""] if key.startswith(".") else ["-cc", text if key == "" else token[2:].lstrip("=")]
    config, _ = parse_argv([word for word in words if word is not None])
    return config.args or (("compilation_config", True),)


def plain_value(text: str) -> FrozenValue:
    """A text as a number or switch where it looks like one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)
