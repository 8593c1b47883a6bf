"""Names of engine arguments that a study is checked against. They are data, not code."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class ArgumentRules:
    """Content of `autotune/data/study_arguments.toml`.

    Attributes:
        reserved: arguments that a study cannot set, each with the reason.
        weights_argument: which argument says how weights are loaded.
        dummy_weights: its value for random weights.
        context_argument: which argument bounds prompt and answer together, in tokens.
    """

    reserved: dict[str, str]
    weights_argument: str
    dummy_weights: str
    context_argument: str


@cache
def argument_rules() -> ArgumentRules:
    """The rules that ship with the package."""
    text = files("autotune").joinpath("data/study_arguments.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    return ArgumentRules(
        reserved={str(name): str(reason) for name, reason in data["reserved"].items()},
        weights_argument=str(data["weights_argument"]),
        dummy_weights=str(data["dummy_weights"]),
        context_argument=str(data["context_argument"]),
    )
