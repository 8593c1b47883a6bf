"""A study with every default filled in, as text that reads back as the same study."""

from __future__ import annotations

from io import StringIO
from typing import get_args

from pydantic import BaseModel, BeforeValidator
from ruamel.yaml import YAML

from autotune.spec import units
from autotune.spec.describe import item_of, members
from autotune.spec.study import StudySpec


def resolved_yaml(study: StudySpec) -> str:
    """YAML of the whole study with its defaults; keys without a value are left out."""
    yaml = YAML()
    yaml.width = 110
    stream = StringIO()
    yaml.dump(_plain(study), stream)
    return stream.getvalue()


def yaml_value(value: object) -> str:
    """One value on one line, as a study file would have it."""
    yaml = YAML()
    yaml.default_flow_style = True
    yaml.width = 1000
    stream = StringIO()
    yaml.dump(value, stream)
    return stream.getvalue().removesuffix("\n").removesuffix("...").strip()


def field_value(part: type[BaseModel], name: str, value: object) -> object:
    """A field's value as a study file would have it, quantities with their units."""
    field = part.model_fields[name]
    marks = [*field.metadata, *(mark for one in members(field.annotation) for mark in get_args(one)[1:])]
    reads = {mark.func for mark in marks if isinstance(mark, BeforeValidator)}
    if units.parse_duration in reads and isinstance(value, float):
        return units.duration_text(value)
    if units.parse_bytes in reads and isinstance(value, int):
        return units.bytes_text(value)
    item = item_of(field.annotation, dict)
    if isinstance(value, dict) and any(_reads_durations(mark) for mark in get_args(item)[1:]):
        return {key: units.duration_text(one) for key, one in value.items()}
    return _plain(value)


def _reads_durations(mark: object) -> bool:
    return isinstance(mark, BeforeValidator) and mark.func is units.parse_duration


def _plain(value: object) -> object:
    if isinstance(value, BaseModel):
        part = type(value)
        found = {name: field_value(part, name, getattr(value, name)) for name in part.model_fields}
        return {name: item for name, item in found.items() if item is not None}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return int(value)
    return value
