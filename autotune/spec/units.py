"""Quantities with units as people write them: ``500ms``, ``80GiB``, ``4h``, ``5%``."""

from __future__ import annotations

import math
import re
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

_DURATION = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {
    "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_NUMBER = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z%]*)\s*$")


def shortened(text: str) -> str:
    """The text in quotes, cut to what a message can hold."""
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _split(text: str) -> tuple[float, str] | None:
    match = _NUMBER.match(text)
    return (float(match.group(1)), match.group(2).lower()) if match else None


def parse_duration(value: object) -> object:
    """Seconds from ``"500ms"``, ``"4h"``, ``"1h30m"`` or a plain number of seconds.

    Raises:
        ValueError: the text is no duration; the message says what is.
    """
    if not isinstance(value, str):
        return value
    pieces = re.findall(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)", value)
    rest = re.sub(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)", "", value).strip()
    if pieces and not rest and all(unit.lower() in _DURATION for _, unit in pieces):
        return sum(float(number) * _DURATION[unit.lower()] for number, unit in pieces)
    units = ", ".join(_DURATION)
    raise ValueError(f"{shortened(value)} is no duration; write a number with one of {units}, such as 500ms or 4h")


def parse_bytes(value: object) -> object:
    """Bytes from ``"80GiB"``, ``"512M"`` (binary, as vLLM reads it) or a plain number of bytes.

    Raises:
        ValueError: the text is no size.
    """
    if not isinstance(value, str):
        return value
    split = _split(value)
    if split is None or split[1] not in _BYTES:
        raise ValueError(f"{shortened(value)} is no size; write a number with a unit, such as 80GiB or 512MiB")
    size = split[0] * _BYTES[split[1]]
    if not math.isfinite(size):
        raise ValueError(f"{shortened(value)} is too large a size")
    return int(size)


def parse_share(value: object) -> object:
    """A share between 0 and 1 from ``"5%"`` or ``0.05``.

    Raises:
        ValueError: the text is no share.
    """
    if not isinstance(value, str):
        return value
    split = _split(value)
    if split is None or split[1] not in ("", "%"):
        raise ValueError(f"{shortened(value)} is no share; write 5% or 0.05")
    return split[0] / 100 if split[1] == "%" else split[0]


def duration_text(seconds: float) -> str:
    """The shortest text that `parse_duration` reads back as `seconds`: ``500ms``, ``20s``, ``4h``."""
    for unit in ("h", "m", "s", "ms"):
        count = seconds / _DURATION[unit]
        if count >= 1 and abs(count - round(count)) < 1e-9:
            return f"{round(count)}{unit}"
    return f"{seconds!r}s" if seconds >= 1e-4 or seconds == 0 else f"{seconds * 1e6:.6f}us"


def bytes_text(size: int) -> str:
    """The shortest text that `parse_bytes` reads back as `size`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size % _BYTES[unit.lower()] == 0 and size:
            return f"{size // _BYTES[unit.lower()]}{unit}"
    return f"{size}B"


def _legal(number: dict[str, object], pattern: str) -> WithJsonSchema:
    """What an editor may accept: a plain number, or text with a unit."""
    return WithJsonSchema({"anyOf": [number, {"type": "string", "pattern": pattern}]})


Seconds = Annotated[
    float,
    Field(ge=0),
    BeforeValidator(parse_duration),
    _legal({"type": "number", "minimum": 0}, r"^\s*([0-9]+(\.[0-9]+)?\s*(us|ms|s|sec|m|min|h|d)\s*)+$"),
]
Bytes = Annotated[
    int,
    Field(ge=1),
    BeforeValidator(parse_bytes),
    _legal({"type": "integer", "minimum": 1}, r"^\s*[0-9]+(\.[0-9]+)?\s*([kKmMgGtT]([iI]?[bB])?|[bB])\s*$"),
]
Share = Annotated[
    float,
    Field(ge=0, le=1),
    BeforeValidator(parse_share),
    _legal({"type": "number", "minimum": 0, "maximum": 1}, r"^\s*[0-9]+(\.[0-9]+)?\s*%?\s*$"),
]
