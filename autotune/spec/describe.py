"""Types in the user's words: what a key takes, for messages and for the reference."""

from __future__ import annotations

import types
from typing import Annotated, Any, ForwardRef, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator

from autotune.spec import units
from autotune.spec.secrets import redacted

_QUANTITIES = {
    units.parse_duration: "a duration such as 500ms, 20s or 4h",
    units.parse_bytes: "a size such as 80GiB or 512MiB",
    units.parse_share: "a share such as 5% or 0.05",
}
_PLAIN: dict[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    type(None): "null",
    dict: "a mapping",
    list: "a list",
}
ARGUMENT_VALUE = "a value for vLLM: true or false, a number, text, null, a list or a mapping of these"


def members(annotation: object) -> tuple[object, ...]:
    """The alternatives of a type, without `None`; a type that is no union is its only one."""
    if get_origin(annotation) in (Union, types.UnionType):
        flat = [inner for part in get_args(annotation) for inner in members(part)]
        return tuple(part for part in flat if part is not type(None))
    return (annotation,)


def bare(annotation: object) -> object:
    """The type without its annotations."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def model_of(annotation: object) -> type[BaseModel] | None:
    """The one part of a study that a type holds, if it holds one."""
    for part in members(annotation):
        plain = bare(part)
        if isinstance(plain, type) and issubclass(plain, BaseModel):
            return plain
    return None


def item_of(annotation: object, kind: type) -> object | None:
    """Type of a list's items or a mapping's values, if the type can be such a one."""
    for part in members(annotation):
        plain = bare(part)
        if get_origin(plain) is kind:
            item: object = get_args(plain)[-1]
            return item
    return None


def accepts_flags(annotation: object) -> bool:
    """True and false are legal here, or in the list that stands here."""
    item = item_of(annotation, list)
    return any(bare(part) is bool for part in members(annotation)) or (item is not None and accepts_flags(item))


def describe(annotation: object, metadata: tuple[object, ...] = ()) -> str:
    """What a value of this type looks like, in a few words."""
    for mark in (*metadata, *(get_args(annotation)[1:] if get_origin(annotation) is Annotated else ())):
        if isinstance(mark, BeforeValidator) and mark.func in _QUANTITIES:
            return _QUANTITIES[mark.func]
    parts = members(annotation)
    if float in parts:
        parts = tuple(part for part in parts if part is not int)
    if len(parts) > 4:
        return ARGUMENT_VALUE
    return " or ".join(dict.fromkeys(_describe_one(part) for part in parts))


def _describe_one(annotation: object) -> str:
    if get_origin(annotation) is Annotated:
        return describe(annotation) if _quantity(annotation) else _describe_one(get_args(annotation)[0])
    origin = get_origin(annotation)
    if origin is Literal:
        return "one of " + ", ".join(str(value) for value in get_args(annotation))
    if origin is list:
        return f"a list ({describe(get_args(annotation)[0])} each)"
    if origin is dict:
        return f"a mapping ({describe(get_args(annotation)[1])} each)"
    model = model_of(annotation)
    if model is not None:
        return "a mapping with " + ", ".join(model.model_fields)
    if isinstance(annotation, ForwardRef):
        return "a mapping"
    return _PLAIN.get(annotation, "a value")


def _quantity(annotation: Any) -> bool:
    return any(isinstance(mark, BeforeValidator) and mark.func in _QUANTITIES for mark in get_args(annotation)[1:])


def show(value: object) -> str:
    """A value as a message quotes it: short, and on one line."""
    if value is None:
        return "null (nothing)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return units.shortened(redacted(value))
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
