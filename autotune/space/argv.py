"""The command line and the `--config` file of `vllm serve`, from and to an `EngineConfig`.

Nested settings become one JSON value per argument (`--compilation-config '{"mode": 3}'`), which every version takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from autotune.space.arguments import Argument, ArgumentTable, bundled_table
from autotune.space.config import EngineConfig, FrozenValue, Scalar

Json: TypeAlias = "Scalar | list[Json] | dict[str, Json]"
YamlValue: TypeAlias = Json

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_FACTORS = {
    "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40,
}  # fmt: skip
_LEVELS = frozenset("0123")
_NEGATIVE_NUMBER = re.compile(r"-\d+(\.\d+)?([eE][+-]?\d+)?")


def to_argv(config: EngineConfig, table: ArgumentTable | None = None) -> list[str]:
    """Flags of `vllm serve` for the arguments of `config`, sorted by name; the environment is not part of it.

    Args:
        config: arguments; what the table does not know is written by its type.
        table: of the vLLM that will read it. Default: 0.32.0's.
    """
    known = table or bundled_table()
    argv: list[str] = []
    for name, value in _grouped(config).items():
        argv += _tokens(name, value, known.by_name.get(name))
    return argv


def to_yaml_mapping(config: EngineConfig) -> dict[str, YamlValue]:
    """What a file for `vllm serve --config` holds: names with dashes, nested mappings, lists."""
    return {name.replace("_", "-"): value for name, value in _grouped(config).items()}


def parse_argv(tokens: Sequence[str], table: ArgumentTable | None = None) -> tuple[EngineConfig, tuple[str, ...]]:
    """Read a command line back.

    Returns:
        The configuration, and the tokens that are no argument of this vLLM (the command itself, the model, unknown
        flags with what follows them), in their order. Never raises: what cannot be read as a value stays a text.
    """
    known = table or bundled_table()
    args: dict[str, object] = {}
    leftovers: list[str] = []
    queue = list(tokens)
    while queue:
        token = queue.pop(0)
        if not token.startswith("-") or _NEGATIVE_NUMBER.fullmatch(token):
            leftovers.append(token)
        elif not _take(_spelling(token, queue[:1]), queue, known, args):
            leftovers.append(token)
            if "=" not in token and queue and not queue[0].startswith("-"):
                leftovers.append(queue.pop(0))
    return EngineConfig.of(args), tuple(leftovers)


def _grouped(config: EngineConfig) -> dict[str, Json]:
    """Top-level arguments; dotted names are gathered into nested mappings."""
    grouped: dict[str, Json] = {}
    for name, value in config.args:
        plain: Json = list(value) if isinstance(value, tuple) else value
        head, *keys = name.split(".")
        if not keys:
            present = grouped.get(head)
            if not isinstance(present, dict):
                grouped[head] = plain
            continue
        inner = grouped.get(head)
        if not isinstance(inner, dict):
            inner = grouped[head] = {}
        for key in keys[:-1]:
            below = inner.get(key)
            if not isinstance(below, dict):
                below = inner[key] = {}
            inner = below
        inner[keys[-1]] = plain
    return grouped


def _tokens(name: str, value: Json, argument: Argument | None) -> list[str]:
    flag = argument.flag if argument else "--" + name.replace("_", "-")
    if isinstance(value, bool) and (argument is None or argument.kind in ("switch", "true")):
        if value:
            return [flag]
        negative = argument.negative if argument else "--no-" + flag.removeprefix("--")
        return [negative] if negative else []
    if isinstance(value, dict):
        return [flag, json.dumps(value)]
    if isinstance(value, list):
        if argument is not None and argument.kind == "json":
            return [flag, json.dumps(value)]
        if argument is not None and argument.kind == "append":
            return [token for item in value for token in (flag, _text(item))]
        return [flag, *(_text(item) for item in value)] if value else []
    text = _text(value)
    # A value that looks like a flag must be joined to its own, or argparse takes it for one.
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]


def _text(value: Json) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else json.dumps(value)


def _spelling(token: str, following: Sequence[str] = ()) -> str:
    """The token as vLLM's parser spells it: dashes in names up to the first dot, `-O3` and `-O 3` written out."""
    match = re.fullmatch(r"-O=?([^.{=].*)", token)
    if match and not token.startswith("--"):
        return f"--optimization-level={match.group(1)}"
    if token == "-O" and "".join(following) in _LEVELS:  # noqa: S105
        return "--optimization-level"
    if token.startswith("--"):
        name, equals, value = token.partition("=")
        head, dot, rest = name.partition(".")
        return head.replace("_", "-") + dot + rest + equals + value
    return token


def _take(token: str, queue: list[str], table: ArgumentTable, args: dict[str, object]) -> bool:
    """Read one flag and its values into `args`; False where the flag is unknown or has no value."""
    flag, equals, joined = token.partition("=")
    head, dot, path = flag.partition(".")
    argument = table.by_beginning(head if dot else flag)
    if argument is None:
        return not dot and _take_opposite(flag, table, args)
    if dot:
        return _take_nested(argument, path, joined if equals else None, queue, args)
    if argument.kind in ("switch", "true"):
        if not equals:
            args[argument.name] = not _says_no(flag, argument)
        return not equals  # argparse takes no value there
    if argument.kind == "list":
        items = [joined] if equals else []
        while queue and (not queue[0].startswith("-") or _NEGATIVE_NUMBER.fullmatch(queue[0])):
            items.append(queue.pop(0))
        args[argument.name] = [_value(item, argument) for item in items]
        return bool(items)
    if not equals:
        if not queue or (queue[0].startswith("-") and not _NEGATIVE_NUMBER.fullmatch(queue[0])):
            return False
        joined = queue.pop(0)
    if argument.kind == "append":
        before = args.get(argument.name)
        args[argument.name] = [*(before if isinstance(before, list) else []), joined]
    elif argument.kind == "json":
        _lay_json(argument.name, joined, args, closed=argument.name in dict(table.nested))
    else:
        args[argument.name] = _value(joined, argument)
    return True


def _says_no(flag: str, argument: Argument) -> bool:
    """0.33 has three spellings of no: `--no-enable-x`, `--no-disable-x`, and the opposite word."""
    opposites = (("enable_", "--disable-"), ("disable_", "--enable-"))
    return flag.startswith("--no-") or any(
        argument.name.startswith(word) and flag.startswith(other) for word, other in opposites
    )


def _take_opposite(flag: str, table: ArgumentTable, args: dict[str, object]) -> bool:
    """`--disable-x` for `--enable-x`, which 0.33 takes beside `--no-enable-x`."""
    if not flag.startswith("--disable-"):
        return False
    argument = table.by_flag.get("--enable-" + flag.removeprefix("--disable-"))
    if argument is None or argument.kind != "switch":
        return False
    args[argument.name] = False
    return True


def _take_nested(argument: Argument, path: str, joined: str | None, queue: list[str], args: dict[str, object]) -> bool:
    """`-cc.cudagraph_mode=FULL`, `--compilation-config.compile_sizes+ 1,2`."""
    if joined is None:
        if not queue:
            return False
        joined = queue.pop(0)
    name = f"{argument.name}.{path.removesuffix('+')}"
    if path.endswith("+"):
        before = args.get(name)
        args[name] = [*(before if isinstance(before, list) else []), *joined.split(",")]
        return True
    value = _json(joined)
    size = _SIZE.fullmatch(joined)
    args[name] = joined if value is None and joined != "null" else value
    if size:
        args[name] = _size(joined)
    return True


def _lay_json(name: str, text: str, args: dict[str, object], *, closed: bool) -> None:
    """Flatten a JSON value where an `EngineConfig` can hold it, else keep its text.

    Args:
        closed: the keys are vLLM's own, so that null means "not given"; elsewhere null is a value.
    """
    value = _json(text)
    if isinstance(value, dict) and value and _flat(value, closed):
        args.update({f"{name}.{key}": inner for key, inner in value.items()})
    else:
        args[name] = text


def _flat(value: Mapping[str, object], closed: bool) -> bool:
    return all(_plain_key(key) and _plain_value(inner, closed) for key, inner in value.items())


def _plain_key(key: str) -> bool:
    return bool(key) and not set(key) & set(".-")


def _plain_value(value: object, closed: bool) -> bool:
    if isinstance(value, dict):
        return bool(value) and _flat(value, closed)
    if isinstance(value, list):
        return not any(isinstance(item, list | dict) for item in value)
    return value is not None or closed


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _value(text: str, argument: Argument) -> FrozenValue:
    try:
        if argument.type == "int":
            return int(text)
        if argument.type == "float":
            return float(text)
        if argument.type == "size":
            return _size(text)
    except (ValueError, OverflowError):
        pass
    return text


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    return int(float(match.group(1)) * _FACTORS[match.group(2)]) if match else int(text)
