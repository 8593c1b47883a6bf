"""Turns what a file says into what this vLLM would do with it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import TypeVar

from autotune.adopt.grouping import Group, group_words, plain_value, whole_config
from autotune.adopt.secret_names import is_secret
from autotune.adopt.values import Adopted, Document, EnvSetting, Place, Reading, Setting, Unknown
from autotune.engine.redaction import redact
from autotune.space.arguments import ArgumentTable, check_config
from autotune.space.argv import parse_argv, to_argv
from autotune.space.config import EngineConfig, FrozenValue
from autotune.space.expression import nearest
from autotune.space.renames import argument_renames, parse_version, translate, variable_renames
from autotune.spec.rules import argument_rules

_T = TypeVar("_T")
VARIABLES_OF = "0.32.0"
"""The release that `variables.txt` is of; `renames.toml` has what changed with the others."""
_TAG = re.compile(r"(?:^|/)[\w.-]*vllm[\w.-]*(?:/[\w.-]*)*:v?(\d+\.\d+(?:\.\d+)?)")


@dataclass
class _Gathered:
    """What one reading gives, while it is gathered."""

    args: dict[str, FrozenValue] = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    exposed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    model: str = ""


def judge(document: Document, source: str, reading: Reading, table: ArgumentTable) -> Adopted:
    """The baseline that a reading means for the vLLM of `table`."""
    found = _Gathered(unread=list(reading.unread), notes=list(reading.notes), model=reading.model)
    for setting in reading.settings:
        _add_setting(setting, table, found)
    if reading.line is not None:
        _add_line(reading, table, found)
    env = _environment(reading.env, table, found)
    config = _safe(EngineConfig.of(found.args, env), table, found)
    found.model = found.model or str(config.get("model") or config.get("model_tag") or "")
    reserved = argument_rules().reserved
    return Adopted(
        path=document.path, text=document.text, format=source, reading=reading, model=found.model, config=config,
        kept=tuple(name for name, _ in config.args if name in reserved),
        unknown=tuple(_once(found.unknown)), unread=tuple(_once(found.unread)), secrets=tuple(_once(found.secrets)),
        exposed=tuple(_once(found.exposed)),
        notes=tuple(_once(found.notes)), places=tuple(found.places), version=version_of(reading.image),
        asked=table.version,
    )  # fmt: skip


def version_of(image: str) -> str:
    """The vLLM version in an image's tag; empty where the tag is no release of vLLM's own image."""
    match = _TAG.search(image)
    if match is None or "lmcache" in image or "dynamo" in image:
        return ""
    return match.group(1)


# -- command line --------------------------------------------------------------------------------------------------


def _add_line(reading: Reading, table: ArgumentTable, found: _Gathered) -> None:
    line = reading.line
    assert line is not None
    grouped = group_words(line.words, table)
    for word in grouped.positional:
        if word.resolved and not found.model and word.plain not in ("serve", "--", ""):
            found.model = word.plain
        elif not word.resolved and word.plain.strip():
            found.unread.append(f"{word.plain} stands in the command line and is not known here")
    found.args.update(whole_config(grouped, table).args)
    for group in grouped.groups:
        _add_group(group, table, found)


def _add_group(group: Group, table: ArgumentTable, found: _Gathered) -> None:
    if not all(word.certain for word in group.words):
        found.unread.append(f"{group.flag} is only given under a condition that could not be decided")
        for name, _ in group.args:
            found.args.pop(name, None)
        return
    if not group.known:
        _lost(group, table, found)
        return
    head = _head(group, table)
    if not group.resolved:
        missing = sorted({name for word in group.words for name in word.missing})
        if is_secret(head):  # a reference to a secret is as it should be
            found.secrets.append(head)
            found.places.append(Place(head, head, (head,), group.words))
            return
        text = " ".join(word.plain for word in group.words[1:]) or group.words[0].plain.partition("=")[2]
        needs = f"; give --var {missing[0]}=VALUE" if missing else ""
        found.unread.append(f"{head} is {redact(text)}, which is set elsewhere{needs}")
        found.places.append(Place(head, head, (head,), group.words))
        return
    names = tuple(name for name, _ in group.args)
    found.places.append(Place(head, head, names, group.words))


def _head(group: Group, table: ArgumentTable) -> str:
    if group.args:
        return group.args[0][0].partition(".")[0]
    flag = group.flag.replace("_", "-").partition(".")[0]
    argument = table.by_flag.get(flag)
    return argument.name if argument else flag.lstrip("-").replace("-", "_")


def _lost(group: Group, table: ArgumentTable, found: _Gathered) -> None:
    """A flag that this vLLM does not take: carried over where it has a new name, named in any case."""
    name, value = group.args[0]
    if all(table.knows(key) for key, _ in group.args):
        found.args.update(group.args)
        found.unknown.append(_misspelt(group, table))
        names = tuple(key for key, _ in group.args)
    else:
        names = tuple(key for key, _ in _carry(name, value, table, found, written=group.flag))
    if names:
        found.places.append(Place(names[0].partition(".")[0], name, names, group.words))


def _misspelt(group: Group, table: ArgumentTable) -> Unknown:
    """An argument that exists, written in a way that this parser does not take."""
    correct = " ".join(shlex.join(to_argv(EngineConfig(args=group.args), table)).splitlines())
    written = group.words[0].plain.partition("=")[0]
    what = "has no" if group.flag.startswith("-O") else "takes no value behind"
    return Unknown(written, f"vLLM {table.version} {what} {written}", f"Write {correct}.")


def _carry(
    name: str, value: FrozenValue, table: ArgumentTable, found: _Gathered, *, written: str
) -> tuple[tuple[str, FrozenValue], ...]:
    """What an argument of another version means here; an `Unknown` says what happened to it."""
    config, notes = translate(EngineConfig(args=((name, value),)), table.version)
    moved = tuple(item for item in config.args if table.knows(item[0]) and item[0] != name)
    if moved:
        found.args.update({key: inner for key, inner in moved if key not in found.args})
        found.unknown.append(Unknown(written, f"vLLM {table.version} has no {written}", notes[0] if notes else ""))
        return moved
    rule = argument_renames().get(name)
    if rule is not None and notes:
        since = parse_version(table.version) < rule.since
        message = (
            f"vLLM {table.version} {'does not have' if since else 'has no'} {written}{' yet' if since else ' any more'}"
        )
        found.unknown.append(Unknown(written, message, rule.hint or "Remove it."))
        return ()
    near = table.nearest(name)
    hint = f"Did you mean --{near.replace('_', '-')}?" if near else "Remove it."
    found.unknown.append(Unknown(written, f"vLLM {table.version} has no {written}", hint))
    return ()


# -- keys ----------------------------------------------------------------------------------------------------------


def _add_setting(setting: Setting, table: ArgumentTable, found: _Gathered) -> None:
    if isinstance(setting.value, str) and re.search(r"\$\{?\w|\{\{", setting.value):
        found.unread.append(f"{setting.spelling} is {redact(setting.value)}, which is set elsewhere")
        found.places.append(Place(setting.name, setting.spelling, (setting.name,), setting=setting))
        return
    args = _meant(setting, table)
    if args is None:
        found.unread.append(f"{setting.spelling} has a value of a shape that no argument takes")
        return
    known = {name: value for name, value in args.items() if table.knows(name)}
    names = list(known)
    for name, value in args.items():
        if name not in known:
            inner = name.partition(".")[2]
            written = f"{setting.spelling}.{inner}" if inner else setting.spelling
            names += [key for key, _ in _carry(name, value, table, found, written=written)]
    found.args.update(known)
    if names:
        found.places.append(Place(names[0].partition(".")[0], setting.spelling, tuple(names), setting=setting))


def _meant(setting: Setting, table: ArgumentTable) -> dict[str, FrozenValue] | None:
    """The arguments that a key gives, read as vLLM reads its own file: as if they stood on a command line."""
    name, value = setting.name, setting.value
    if value is None:
        return {}
    if isinstance(value, bool):
        argument = table.by_flag.get("--" + name.replace("_", "-"))
        if argument is not None and argument.name != name:  # `no-x: true`, and short names
            return dict(parse_argv(["--" + name.replace("_", "-")], table)[0].args) if value else {}
        if name.startswith("no_") and argument is None and not table.knows(name):
            return {name[3:]: not value}
        return {name: value}
    if isinstance(value, str):
        if not table.knows(name):
            return {name: plain_value(value)}
        config, left = parse_argv([f"--{name.replace('_', '-')}={value}"], table)
        return dict(config.args) if config.args or not left else {name: plain_value(value)}
    try:
        made = EngineConfig.of({name: value})
    except TypeError:
        return None
    if isinstance(value, int | float):
        argument = table.by_name.get(name)
        if argument is not None and argument.type == "text" and argument.kind == "value":
            return {name: str(value)}
    return dict(made.args)


# -- environment and secrets ---------------------------------------------------------------------------------------


def _environment(settings: Iterable[EnvSetting], table: ArgumentTable, found: _Gathered) -> dict[str, str]:
    env: dict[str, str] = {}
    for setting in settings:
        name = setting.name
        if is_secret(name, setting.value or "") or (setting.value is None and "secret" in setting.reference):
            env[name] = f"${{{name}}}"
            found.secrets.append(name)
            if setting.value and not re.match(r"\$|<", setting.value):
                found.exposed.append(name)
            continue
        if setting.value is None:
            env.pop(name, None)
            found.notes.append(f"{name} is taken from elsewhere ({setting.reference or 'passed through'})")
            continue
        env[name] = setting.value
        _lost_variable(name, setting.value, table, found)
    return env


def _lost_variable(name: str, value: str, table: ArgumentTable, found: _Gathered) -> None:
    rule = variable_renames().get(name)
    if rule is None and name.startswith("VLLM_") and name not in known_variables():
        near = nearest(name.removeprefix("VLLM_"), [known.removeprefix("VLLM_") for known in known_variables()])
        hint = f"Did you mean VLLM_{near}?" if near else "Remove it, or keep it if a plug-in of yours reads it."
        message = f"vLLM {table.version} does not read {name}; it is ignored"
        if parse_version(table.version) != parse_version(VARIABLES_OF):
            message = f"vLLM {VARIABLES_OF} does not read {name}; look whether {table.version} does, else it is ignored"
        found.unknown.append(Unknown(name, message, hint, fatal=False))
    if rule is None or rule.exists_in(parse_version(table.version)):
        return
    moved, notes = translate(EngineConfig(env=((name, value),)), table.version)
    found.args.update({key: inner for key, inner in moved.args if key not in found.args and table.knows(key)})
    hint = notes[0] if notes else rule.hint
    found.unknown.append(Unknown(name, f"vLLM {table.version} does not read {name}; it is ignored", hint, fatal=False))


def _safe(config: EngineConfig, table: ArgumentTable, found: _Gathered) -> EngineConfig:
    """Without secrets in values, and without values that this vLLM refuses."""
    args = dict(config.args)
    for name, value in config.args:
        texts = [item for item in (value if isinstance(value, tuple) else (value,)) if isinstance(item, str)]
        flag = " ".join(to_argv(EngineConfig(args=((name, value),)), table)) if texts else ""
        if texts and redact(flag) != flag:
            args[name] = f"${{{name.rpartition('.')[2].upper()}}}"
            found.secrets.append(name)
            found.exposed.append(name)
    for problem in check_config(EngineConfig.of(args), table):
        if problem.fatal and problem.name in args and not str(args[problem.name]).startswith("$"):
            found.unknown.append(Unknown(problem.name, problem.message, problem.hint))
            args.pop(problem.name)
    env = {name: value for name, value in config.env if variable_known(name, table)}
    return EngineConfig.of(args, env)


def variable_known(name: str, table: ArgumentTable) -> bool:
    """Whether this vLLM still reads the variable (variables of others are always kept)."""
    rule = variable_renames().get(name)
    return rule is None or rule.exists_in(parse_version(table.version))


@lru_cache(maxsize=1)
def known_variables() -> frozenset[str]:
    """Variables of vLLM's own that it reads, from `variables.txt`."""
    lines = (files("autotune.adopt") / "variables.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def _once(items: Iterable[_T]) -> list[_T]:
    return list(dict.fromkeys(items))
