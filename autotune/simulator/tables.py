"""The data files of the simulator, read once."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any


@cache
def table(name: str) -> Mapping[str, Any]:
    """A TOML file of ``autotune/simulator/data`` whose top level holds tables."""
    text = resources.files("autotune.simulator").joinpath(f"data/{name}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def names(file: str, section: str) -> tuple[str, ...]:
    """The keys of one section."""
    return tuple(table(file)[section])
