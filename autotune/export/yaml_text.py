"""Plain values as YAML text that every parser reads the same way."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "~", ""})


def yaml_text(value: Mapping[str, object]) -> str:
    """Block style, keys in the given order; texts that YAML 1.1 would read as something else are quoted."""
    yaml = YAML()
    yaml.width = 1000  # a folded command line reads badly and breaks under careless tools
    yaml.indent(mapping=2, sequence=4, offset=2)
    stream = StringIO()
    yaml.dump(_shown(value), stream)
    return stream.getvalue()


def _shown(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _shown(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(inner) for inner in value]
    if isinstance(value, str):
        if "\n" in value:
            return LiteralScalarString(value)
        if value.lower() in _WORDS or value[:1] in "-0123456789.+" or set(value) & set("{}[]#&*!|>%@`'\",:"):
            return DoubleQuotedScalarString(value)
    return value
