"""Facts about other people's formats, from `formats.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class FormatFacts:
    """See `formats.toml`.

    Attributes:
        keys: argument by the end of a key's path.
        maps: keys of mappings with vLLM's own names.
        lists: keys of lists of arguments.
        models: ends of paths that say the model.
        variables: variables whose text is a command line.
        engine_variables: beginnings of the names of variables that vLLM and its libraries read.
        production_stack: keys of `vllmConfig` that the production-stack chart reads.
    """

    keys: Mapping[tuple[str, ...], str]
    maps: frozenset[str]
    lists: frozenset[str]
    models: tuple[tuple[str, ...], ...]
    variables: frozenset[str]
    engine_variables: tuple[str, ...]
    production_stack: frozenset[str]

    def argument_of(self, path: tuple[str, ...]) -> str:
        """The argument that a key stands for, or empty."""
        plain = tuple(part for part in path if not part.isdigit())
        return next((self.keys[plain[-n:]] for n in (3, 2) if plain[-n:] in self.keys), "")

    def says_model(self, path: tuple[str, ...]) -> bool:
        """Whether the key says the model."""
        plain = tuple(part for part in path if not part.isdigit())
        return any(plain[-len(end) :] == end for end in self.models)


@lru_cache(maxsize=1)
def format_facts() -> FormatFacts:
    """The facts, read once."""
    data = tomllib.loads((files("autotune.adopt") / "formats.toml").read_text(encoding="utf-8"))
    return FormatFacts(
        keys={tuple(row["path"].split(".")): row["argument"] for row in data["key"]},
        maps=frozenset(data["maps"]["names"]),
        lists=frozenset(data["lists"]["names"]),
        models=tuple(tuple(path.split(".")) for path in data["model"]["paths"]),
        variables=frozenset(data["variables"]["arguments"]),
        engine_variables=tuple(data["engine"]["variables"]),
        production_stack=frozenset(data["production_stack"]["keys"]),
    )
