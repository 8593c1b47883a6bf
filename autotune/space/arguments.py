"""The arguments that a vLLM understands, as a value: from its own parser, or the bundled table of 0.32.0."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import Literal, TypeAlias, get_args

from autotune.space.config import EngineConfig, FrozenValue, Scalar
from autotune.space.expression import nearest
from autotune.space.renames import (
    NEWEST,
    OLDEST,
    Rename,
    argument_renames,
    parse_version,
    translate,
    variable_renames,
)

__all__ = [
    "Argument", "ArgumentProblem", "ArgumentTable", "bundled_table", "check_config", "shipped_table", "translate",
]  # fmt: skip

ArgumentKind: TypeAlias = Literal["switch", "true", "value", "list", "append", "json"]
"""`switch` is `--x`/`--no-x`, `true` a bare flag, `append` a flag that is repeated, `json` JSON or dotted keys."""
ArgumentType: TypeAlias = Literal["bool", "int", "float", "size", "text", "json"]
"""`size` is an integer that may be written `32k` (1,000s) or `32K` (1,024s)."""
_KINDS: tuple[ArgumentKind, ...] = get_args(ArgumentKind)
_TYPES: tuple[ArgumentType, ...] = get_args(ArgumentType)


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of `vllm serve`.

    Attributes:
        name: with underscores.
        flags: as the parser takes them, long one first.
        kind: how values follow the flag.
        type: of one value.
        choices: legal values, empty where any goes.
        default: where the parser knows one.
        deprecated: what vLLM says about it, or empty.
    """

    name: str
    flags: tuple[str, ...]
    kind: ArgumentKind
    type: ArgumentType = "text"
    choices: tuple[str, ...] = ()
    default: Scalar = None
    deprecated: str = ""

    @property
    def flag(self) -> str:
        """The long flag that says yes."""
        plain = "--" + self.name.replace("_", "-")
        return plain if plain in self.flags else max(self.flags, key=len)

    @property
    def negative(self) -> str | None:
        """The flag that says no, None where there is none."""
        if self.kind != "switch":
            return None
        return next((flag for flag in self.flags if flag.startswith("--no-")), None)


@dataclass(frozen=True)
class ArgumentProblem:
    """One argument that this vLLM would refuse or ignore.

    Attributes:
        name: of the argument.
        message: what is wrong.
        hint: what to do.
        fatal: the server would not start (false: it only warns).
    """

    name: str
    message: str
    hint: str = ""
    fatal: bool = True


@dataclass(frozen=True)
class ArgumentTable:
    """All arguments of one vLLM.

    Attributes:
        version: of that vLLM.
        arguments: sorted by name.
        nested: legal keys below a JSON argument, by its dotted name; arguments that are not listed take any key.
        quantizations: legal values of `quantization`, empty where unknown.
    """

    version: str
    arguments: tuple[Argument, ...]
    nested: tuple[tuple[str, tuple[str, ...]], ...] = ()
    quantizations: tuple[str, ...] = ()

    @cached_property
    def by_name(self) -> dict[str, Argument]:
        """The arguments by name."""
        return {argument.name: argument for argument in self.arguments}

    @cached_property
    def by_flag(self) -> dict[str, Argument]:
        """The arguments by each of their flags."""
        return {flag: argument for argument in self.arguments for flag in argument.flags}

    def by_beginning(self, flag: str) -> Argument | None:
        """The argument of a flag, or of the only flag that begins so: argparse takes abbreviations of long flags."""
        exact = self.by_flag.get(flag)
        if exact is not None or not flag.startswith("--") or len(flag) < 4:
            return exact
        found = [argument for known, argument in self.by_flag.items() if known.startswith(flag)]
        return found[0] if len(found) == 1 else None

    @cached_property
    def names(self) -> frozenset[str]:
        """Every legal name, nested ones dotted."""
        inner = {f"{name}.{key}" for name, keys in self.nested for key in keys}
        return frozenset(self.by_name.keys() | inner)

    def knows(self, name: str) -> bool:
        """Whether `name` (dotted for nested keys) is legal."""
        if name in self.names:
            return True
        parent, dot, _ = name.rpartition(".")
        while dot:
            if parent in dict(self.nested):
                return False
            argument = self.by_name.get(parent)
            if argument is not None:
                return argument.kind == "json"
            if parent in self.names:  # a nested mapping whose keys are free
                return True
            parent, dot, _ = parent.rpartition(".")
        return False

    def nearest(self, name: str) -> str | None:
        """The most similar legal name."""
        return nearest(name.lstrip("-").replace("-", "_"), self.names)

    @classmethod
    def from_json(cls, text: str) -> ArgumentTable:
        """Read the form that `to_json` writes.

        Raises:
            ValueError: the text is not of that form.
        """
        data = json.loads(text)
        try:
            return cls(
                version=str(data["version"]),
                arguments=tuple(_argument(row) for row in sorted(data["arguments"], key=lambda row: str(row["name"]))),
                nested=tuple((str(name), tuple(keys)) for name, keys in sorted(data.get("nested", {}).items())),
                quantizations=tuple(data.get("quantizations", ())),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no argument table: {error!r}") from error

    def to_json(self) -> str:
        """The table as JSON text."""
        rows = [
            {
                "name": a.name, "flags": a.flags, "kind": a.kind, "type": a.type, "choices": a.choices,
                "default": a.default, "deprecated": a.deprecated,
            }
            for a in self.arguments
        ]  # fmt: skip
        return json.dumps(
            {
                "version": self.version,
                "quantizations": self.quantizations,
                "nested": dict(self.nested),
                "arguments": rows,
            }
        )


def _argument(row: Mapping[str, object]) -> Argument:
    kind = next((known for known in _KINDS if known == row["kind"]), None)
    type_ = next((known for known in _TYPES if known == row.get("type", "text")), None)
    if kind is None or type_ is None:
        raise ValueError(f"no argument kind: {row['kind']!r}, {row.get('type')!r}")
    flags, choices, default = row["flags"], row.get("choices", ()), row.get("default")
    if not isinstance(flags, list) or not isinstance(choices, list | tuple):
        raise ValueError("flags and choices must be lists")
    return Argument(
        name=str(row["name"]),
        flags=tuple(map(str, flags)),
        kind=kind,
        type=type_,
        choices=tuple(map(str, choices)),
        default=default if isinstance(default, bool | int | float | str) else None,
        deprecated=str(row.get("deprecated", "")),
    )


@lru_cache(maxsize=1)
def bundled_table() -> ArgumentTable:
    """vLLM 0.32.0's arguments, for plans and the simulator where no vLLM is installed."""
    return ArgumentTable.from_json((files("autotune.space") / "vllm-0.32.0.json").read_text(encoding="utf-8"))


@lru_cache(maxsize=8)
def shipped_table(version: str) -> ArgumentTable:
    """The bundled table with what `renames.toml` knows of another supported release: its names, 0.32.0's choices.

    A version that is not supported, or none, gives the bundled table itself.
    """
    base, target = bundled_table(), parse_version(version)
    if not version or not OLDEST <= target <= NEWEST or target == parse_version(base.version):
        return base
    there = {name: rule for name, rule in argument_renames().items() if rule.exists_in(target)}
    lost = {name for name in base.names if name in argument_renames() and name not in there}
    more = [name for name in there if not base.knows(name)]
    nested = {
        name: [*(key for key in keys if f"{name}.{key}" not in lost),
               *(new.rpartition(".")[2] for new in more if new.rpartition(".")[0] == name)]
        for name, keys in base.nested
    }  # fmt: skip
    arguments = [one for one in base.arguments if one.name not in lost]
    arguments += [_remembered(name) for name in more if "." not in name]
    return ArgumentTable(
        version, tuple(sorted(arguments, key=lambda one: one.name)),
        tuple((name, tuple(keys)) for name, keys in sorted(nested.items())), base.quantizations,
    )  # fmt: skip


def _remembered(name: str) -> Argument:
    """An argument of which only the name is known."""
    flag = "--" + name.replace("_", "-")
    if name.endswith("_config"):
        return Argument(name, (flag,), "json", "json")
    if name.startswith(("enable_", "disable_", "calculate_")):
        return Argument(name, (flag, "--no-" + flag[2:]), "switch", "bool")
    return Argument(name, (flag,), "value")


def check_config(config: EngineConfig, table: ArgumentTable) -> tuple[ArgumentProblem, ...]:
    """What the parser of that vLLM would refuse in `config`, and what is deprecated; empty when all is well."""
    problems = [_problem(name, value, table) for name, value in config.args]
    problems += [_lost_variable(name, table.version) for name, _ in config.env]
    return tuple(problem for problem in problems if problem is not None)


def _lost_variable(name: str, version: str) -> ArgumentProblem | None:
    rule = variable_renames().get(name)
    if rule is None or rule.exists_in(parse_version(version)):
        return None
    message = f"vLLM {version} does not read {name}; it would be ignored"
    return ArgumentProblem(name, message, _instead(rule), fatal=False)


def _instead(rule: Rename) -> str:
    return f"It is {rule.to} now." if rule.to else rule.hint


def _problem(name: str, value: FrozenValue, table: ArgumentTable) -> ArgumentProblem | None:
    if not table.knows(name):
        rule, near = argument_renames().get(name), table.nearest(name)
        hint = f"Did you mean {near}?" if near else "Remove it; `vllm serve --help=all` lists the arguments."
        if rule is not None and not rule.exists_in(parse_version(table.version)):
            hint = _instead(rule) or f"It came with vLLM {rule.since[0]}.{rule.since[1]}; remove it."
        return ArgumentProblem(name, f"vLLM {table.version} has no argument {name}", hint)
    argument = table.by_name.get(name)
    if argument is None:
        return None
    wrong = _misfit(argument, value)
    if wrong is None and name == "quantization" and table.quantizations and value not in table.quantizations:
        near = nearest(str(value), table.quantizations)
        wrong = (f"quantization {value!r} is unknown", f"Did you mean {near}?" if near else "")
    if wrong is not None:
        return ArgumentProblem(name, wrong[0], wrong[1])
    if argument.deprecated:
        return ArgumentProblem(name, argument.deprecated, "Remove it.", fatal=False)
    return None


def _misfit(argument: Argument, value: FrozenValue) -> tuple[str, str] | None:
    """Why `value` does not fit, and what does."""
    name = argument.name
    if argument.kind in ("switch", "true"):
        return None if isinstance(value, bool) else (f"{name} is a switch, not {value!r}", "Give true or false.")
    if argument.kind == "json":
        return None  # scalars may be names of presets or JSON text, keys are checked by name
    items = value if isinstance(value, tuple) else (value,)
    if isinstance(value, tuple) and argument.kind == "value":
        return f"{name} takes one value, not {len(value)}", ""
    for item in items:
        if argument.choices and str(item) not in argument.choices:
            near = nearest(str(item), argument.choices)
            hint = (f"Did you mean {near}? " if near else "") + f"Legal: {', '.join(argument.choices)}."
            return f"{name}={item!r} is not legal", hint
        if argument.type in ("int", "size") and not _whole(item, argument.type == "size"):
            return f"{name}={item!r} is no whole number", "Give a whole number."
        if argument.type == "float" and (isinstance(item, bool) or not isinstance(item, int | float)):
            return f"{name}={item!r} is no number", "Give a number."
    return None


def _whole(value: Scalar, size: bool) -> bool:
    if isinstance(value, str):
        if size and value in ("auto", "-1"):
            return True
        digits = value[:-1] if size and value[-1:] in tuple("kKmMgGtT") else value
        return digits.replace(".", "", 1).isdigit() if size else digits.lstrip("-").isdigit()
    return isinstance(value, int) and not isinstance(value, bool)
