"""The signatures of failure, read from ``failures.toml`` and checked while they are read."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from importlib import resources

from autotune.engine.failure_values import Action, Advice, Cause, Direction, FailureClass
from autotune.engine.stages import Stage
from autotune.errors import SpecError

_FILE = "failures.toml"
_KEYS = frozenset(
    {"id", "class", "cause", "action", "match", "then", "tier", "stages", "quiet", "levels", "early", "serving"}
    | {"advice", "quarantine"}
)
_ADVICE_KEYS = frozenset({"parameter", "direction", "text", "value"})


class Tier(IntEnum):
    """How much a line says; the lower tier decides."""

    ROOT = 0
    SOFT = 5
    """An error that some engines report and survive."""
    BROAD = 10
    HINT = 20
    UNMATCHED = 30
    """An exception that no signature knows."""
    SYMPTOM = 40
    SECONDARY = 50


@dataclass(frozen=True, slots=True)
class Signature:
    """One way to fail; see the head of ``failures.toml``."""

    id: str
    failure_class: FailureClass
    cause: Cause
    action: Action
    patterns: tuple[tuple[str, re.Pattern[str]], ...]
    """Each with a piece of text that stands in whatever it matches; looking for that first is ten times faster."""
    then: re.Pattern[str] | None
    tier: Tier
    stages: frozenset[Stage]
    levels: frozenset[str]
    frames: bool
    early: bool
    serving: bool
    advice: tuple[Advice, ...]
    quarantine: tuple[str, ...]
    place: int
    """Position in the file, from 1."""

    def find(self, text: str) -> tuple[dict[str, str], int] | None:
        """The named groups and where the match ends, or None where no pattern is found in ``text``."""
        for literal, pattern in self.patterns:
            if literal in text and (found := pattern.search(text)):
                # "limit2" is "limit" of the second wording.
                groups = {
                    name.rstrip("0123456789"): value for name, value in found.groupdict().items() if value is not None
                }
                return groups, found.end()
        return None


@cache
def load_signatures() -> tuple[Signature, ...]:
    """All signatures in the order of the file.

    Raises:
        SpecError: the file contradicts itself (names the signature and the key).
    """
    text = resources.files("autotune.engine").joinpath(_FILE).read_text(encoding="utf-8")
    return parse_signatures(text)


def parse_signatures(text: str) -> tuple[Signature, ...]:
    """Read signatures from TOML. Raises `SpecError` with the signature's name and the wrong key."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"not TOML: {error}", file=_FILE) from error
    found = tuple(_signature(entry, place) for place, entry in enumerate(document.get("signature", []), start=1))
    seen: set[str] = set()
    for signature in found:
        if signature.id in seen:
            raise SpecError("this id is used twice", file=_FILE, key=signature.id, hint="Give each signature its own.")
        seen.add(signature.id)
    return found


def _signature(entry: Mapping[str, object], place: int) -> Signature:
    name = str(entry.get("id", f"signature {place}"))
    if unknown := sorted(set(entry) - _KEYS):
        raise SpecError(f"unknown key {unknown[0]}", file=_FILE, key=name, hint=f"Legal: {', '.join(sorted(_KEYS))}.")
    try:
        tier = Tier[str(entry.get("tier", "root")).upper()]
        quiet = bool(entry.get("quiet", False))
        default_levels = ("", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL") if quiet else ("", "ERROR", "CRITICAL")
        return Signature(
            id=str(entry["id"]),
            failure_class=FailureClass(str(entry["class"])),
            cause=Cause(str(entry["cause"])),
            action=Action(str(entry["action"])),
            patterns=tuple((literal_of(pattern), re.compile(pattern)) for pattern in _strings(entry["match"])),
            then=re.compile(str(entry["then"])) if "then" in entry else None,
            tier=tier,
            stages=frozenset(Stage(stage) for stage in _strings(entry.get("stages", []))),
            levels=frozenset(_strings(entry.get("levels", list(default_levels)))),
            frames=quiet,
            early=bool(entry.get("early", tier in (Tier.ROOT, Tier.BROAD) and not quiet)),
            serving=bool(entry.get("serving", False)),
            advice=tuple(_advice(item, name) for item in _tables(entry.get("advice", []))),
            quarantine=_strings(entry.get("quarantine", [])),
            place=place,
        )
    except KeyError as error:
        raise SpecError(f"key {error} is missing or names no tier", file=_FILE, key=name) from error
    except (ValueError, re.error) as error:
        raise SpecError(str(error), file=_FILE, key=name) from error


_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]")
_REPEAT = re.compile(r"\{\d*,?\d*\}")


def literal_of(pattern: str) -> str:
    """The longest text that every match of ``pattern`` contains; empty where there is none for certain.

    Reads the plain characters outside groups and classes; whatever may be left out or repeated ends a piece.
    """
    pieces, piece, depth, place = [""], "", 0, 0
    while place < len(pattern):
        char, place = pattern[place], place + 1
        plain = ""
        if char == "\\":
            escaped, place = pattern[place : place + 1], place + 1
            plain = escaped if not escaped.isalnum() else ""
        elif char == "[" and (bracket := _CLASS.match(pattern, place - 1)):
            place = bracket.end()
        elif char == "{" and (repeat := _REPEAT.match(pattern, place - 1)):
            place = repeat.end()
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and depth == 0:
            return ""
        elif char not in ".^$*+?{}|":
            plain = char
        if plain and depth == 0 and pattern[place : place + 1] not in ("?", "*", "{"):
            piece += plain
        else:
            pieces.append(piece)
            piece = ""
    return max([*pieces, piece], key=len)


def _advice(item: Mapping[str, object], name: str) -> Advice:
    if unknown := sorted(set(item) - _ADVICE_KEYS):
        raise SpecError(f"unknown key {unknown[0]} in advice", file=_FILE, key=name)
    return Advice(
        parameter=str(item["parameter"]),
        direction=Direction(str(item["direction"])),
        text=str(item["text"]),
        value=str(item.get("value", "")),
    )


def _strings(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"expected a list of strings, got {value!r}")
    return tuple(value)


def _tables(value: object) -> tuple[Mapping[str, object], ...]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError(f"expected a list of tables, got {value!r}")
    return tuple(value)
