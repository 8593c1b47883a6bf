"""The command line of ``vllm serve``, parsed from a table of its options (``data/flags.toml``).

The values keep vLLM's own names; which of them the simulator understands is decided in ``config.py``, the others are
accepted and ignored. Errors are argparse's, as vLLM prints them, with exit code 2.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from typing import NoReturn

from .tables import table

FlagValue = object
"""What one option holds: text, number, truth, list, or a parsed JSON object."""

Flags = dict[str, FlagValue]

_SIZES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_USAGE = """usage: vllm [-h] [-v]
            {chat,complete,serve,launch,bench,collect-env,download-kernels,preload,run-batch,snapshot}
            ..."""


class ArgumentError(Exception):
    """The command line is wrong; ``str()`` is the text for stderr and the exit code is 2."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ArgumentError(f"usage: vllm serve [model_tag] [options]\nvllm serve: error: {message}")


def human_size(text: str) -> int:
    """Read ``1k`` (decimal), ``1K`` (binary), ``25.6k`` or a plain integer, as vLLM's human_readable_int does."""
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)([kKmMgGtT]?)", text.strip())
    if not match or ("." in match[1] and match[2] not in ("k", "m", "g", "t")):
        raise argparse.ArgumentTypeError(f"invalid human_readable_int value: {text!r}")
    return int(float(match[1]) * _SIZES.get(match[2], 1))


def _size_or_auto(text: str) -> int:
    return -1 if text.strip().lower() == "auto" else human_size(text)


def _json_object(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        pass
    if re.fullmatch(r"[\w./:-]+", text):  # a method name or a path, where vLLM takes either
        return text
    raise argparse.ArgumentTypeError(
        f"1 validation error for Config\n  Invalid JSON: key must be a string at line 1 column 2 "
        f"[type=json_invalid, input_value={text!r}, input_type=str]"
    )


def _add(parser: argparse.ArgumentParser, name: str, kind: str, also: list[str], choices: list[str] | None) -> None:
    flags = [f"--{name}", *also]
    dest = name.replace("-", "_")
    if kind == "switch":
        parser.add_argument(*flags, dest=dest, action="store_true", default=argparse.SUPPRESS)
        parser.add_argument(f"--no-{name}", dest=dest, action="store_false", default=argparse.SUPPRESS)
    elif kind == "true":
        parser.add_argument(*flags, dest=dest, action="store_true", default=argparse.SUPPRESS)
    elif kind in ("list", "ints"):
        item = int if kind == "ints" else str
        parser.add_argument(*flags, dest=dest, nargs="+", type=item, default=argparse.SUPPRESS)
    elif kind == "maybe":
        parser.add_argument(*flags, dest=dest, nargs="?", const="", default=argparse.SUPPRESS)
    elif kind == "json":
        parser.add_argument(*flags, dest=dest, type=_json_object, default=argparse.SUPPRESS)
    elif kind in ("int", "float", "size"):
        numbers: dict[str, Callable[[str], object]] = {"int": int, "float": float, "size": _size_or_auto}
        number = numbers[kind]
        parser.add_argument(*flags, dest=dest, type=number, default=argparse.SUPPRESS)
    else:
        parser.add_argument(*flags, dest=dest, choices=choices, default=argparse.SUPPRESS)


def _build() -> argparse.ArgumentParser:
    parser = _Parser(prog="vllm serve", add_help=False, allow_abbrev=False)
    parser.add_argument("model_tag", nargs="?", default=None)
    for name, flag in table("flags")["flags"].items():
        _add(parser, name, flag["kind"], flag.get("also", []), flag.get("choices"))
    return parser


def _scalar(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _fold_dotted(argv: Sequence[str]) -> list[str]:
    """Turn ``-cc.mode=3`` and ``--compilation-config.mode 3`` into one JSON argument, and ``--a_b`` into ``--a-b``."""
    plain: list[str] = []
    nested: dict[str, dict[str, object]] = {}
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or len(word) < 2 or word[1].isdigit():
            plain.append(word)
            continue
        name, equals, value = word.partition("=")
        flag, dot, path = name.partition(".")
        if flag.startswith("--"):
            flag = flag.replace("_", "-")
        if not dot:
            plain.append(flag + equals + value)
            continue
        if not equals:
            value = rest.pop(0) if rest else "true"
        target = nested.setdefault(flag, {})
        *parents, leaf = path.split(".")
        for parent in parents:
            step = target.setdefault(parent, {})
            target = step if isinstance(step, dict) else {}
        target[leaf] = _scalar(value)
    for flag, value_of in nested.items():
        plain += [flag, json.dumps(value_of)]
    return plain


def _from_file(path: str) -> list[str]:
    """Arguments from a vLLM ``--config`` YAML file; what stands on the command line comes later and wins."""
    from ruamel.yaml import YAML  # only needed with --config; keeps the start fast

    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - the path is the user's, taken as typed
        values = YAML(typ="safe").load(file) or {}
    words: list[str] = []
    for key, value in values.items():
        name = str(key).replace("_", "-")
        if name in ("model", "model-tag"):
            words.insert(0, str(value))
        elif isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, list):
            words += [f"--{name}", *(str(item) for item in value)]
        elif value is not None:
            words += [f"--{name}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return words


def _merge_file(words: list[str]) -> list[str]:
    for index, word in enumerate(words):
        if word == "--config" and index + 1 < len(words):
            return [*_from_file(words[index + 1]), *words[:index], *words[index + 2 :]]
        if word.startswith("--config="):
            return [*_from_file(word.partition("=")[2]), *words[:index], *words[index + 1 :]]
    return words


def parse(argv: Sequence[str]) -> Flags:
    """Parse the arguments after ``serve``.

    :returns: only the options that were given, by their name with underscores, and ``model``.
    :raises ArgumentError: with argparse's text, when an option is unknown or a value has the wrong type.
    """
    try:
        words = _merge_file(_fold_dotted(argv))
    except OSError as error:
        raise ArgumentError(f"vllm serve: error: cannot read the config file: {error}") from error
    known, unknown = _build().parse_known_args(words)
    if unknown:
        raise ArgumentError(f"{_USAGE}\nvllm: error: unrecognized arguments: {' '.join(unknown)}")
    flags: Flags = {key: value for key, value in vars(known).items() if value is not None}
    model = flags.get("model_tag") or flags.get("model")
    if model is None:
        raise ArgumentError("usage: vllm serve [model_tag] [options]\nvllm serve: error: a model is required")
    flags["model"] = model
    return flags
