"""Turns what pydantic says into errors with a file, a line, a key, what is legal, and the nearest name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from autotune.errors import SpecError
from autotune.spec.checks import StudyProblems
from autotune.spec.describe import bare, describe, item_of, model_of, show
from autotune.spec.document import Document, KeyPath, Plain, dotted


@dataclass(frozen=True)
class _Place:
    """Where an error is: path in the file, type there, the part that holds it, and union branches that were tried."""

    path: KeyPath
    annotation: object
    metadata: tuple[object, ...]
    owner: type[BaseModel] | None
    branches: tuple[str, ...]
    value: Plain
    present: bool


def spec_errors(error: ValidationError, model: type[BaseModel], document: Document) -> list[SpecError]:
    """All mistakes of a file, in the order of their lines."""
    found: dict[KeyPath, list[tuple[_Place, ErrorDetails]]] = {}
    for details in error.errors():
        place = _locate(model, document.data, details["loc"])
        found.setdefault(_union_point(place), []).append((place, details))
    result: list[SpecError] = []
    for group in found.values():
        result.extend(_explain_group(group, model, document))
    unique = {(item.line, item.key, item.message): item for item in result}
    return sorted(unique.values(), key=lambda item: (item.line or 0, item.key or ""))


def _locate(model: type[BaseModel], data: Plain, loc: Sequence[int | str]) -> _Place:
    path: list[str | int] = []
    branches: list[str] = []
    annotation: object = model
    metadata: tuple[object, ...] = ()
    owner: type[BaseModel] | None = None
    value, present = data, True
    for part in loc:
        current = model_of(annotation)
        fields = current.model_fields if current is not None else {}
        inside = isinstance(value, dict) and part in value
        if isinstance(value, dict) and isinstance(part, str) and (inside or part in fields):
            path.append(part)
            owner = current
            if part in fields:
                annotation, metadata = fields[part].annotation, tuple(fields[part].metadata)
            else:
                annotation, metadata = item_of(annotation, dict), ()
            present = inside
            value = value[part] if inside else None
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            path.append(part)
            annotation, metadata = item_of(annotation, list), ()
            value = value[part]
        else:
            branches.append(f"{len(path)}:{part}")
    return _Place(tuple(path), annotation, metadata, owner, tuple(branches), value, present)


def _union_point(place: _Place) -> KeyPath:
    """The value at which branches of a union were tried; errors with the same point belong together."""
    if not place.branches:
        return place.path
    return place.path[: int(place.branches[0].split(":", 1)[0])]


def _explain_group(
    group: list[tuple[_Place, ErrorDetails]], model: type[BaseModel], document: Document
) -> Iterable[SpecError]:
    union = [entry for entry in group if entry[0].branches]
    for place, details in group:
        if not place.branches:
            yield from _explain(place, details, model, document)
    if not union:
        return
    point = _locate(model, document.data, _union_point(union[0][0]))
    wanted = model_of(point.annotation) if isinstance(point.value, dict) else None
    if wanted is not None:
        for place, details in union:
            if any(re.search(rf"\b{wanted.__name__}\b", branch) for branch in place.branches):
                yield from _explain(place, details, model, document)
        return
    ranges = [entry for entry in union if entry[1]["type"] in _RANGES and entry[0].path == point.path]
    if ranges:
        yield from _explain(ranges[0][0], ranges[0][1], model, document)
        return
    yield _wrong_type(point, document)


_RANGES = frozenset({"greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number"})


def _explain(place: _Place, details: ErrorDetails, model: type[BaseModel], document: Document) -> Iterable[SpecError]:
    context: Mapping[str, object] = details.get("ctx", {})
    kind = details["type"]
    cause = context.get("error")
    if isinstance(cause, StudyProblems):
        for problem in cause.problems:
            path = (*place.path, *problem.path)
            yield _error(path, problem.message, problem.hint, document)
    elif kind == "extra_forbidden":
        yield _unknown_key(place, model, document)
    elif kind == "missing":
        takes = describe(place.annotation, place.metadata)
        yield _error(place.path, "is missing", f"give {takes}. {_doc(place)}".strip(), document)
    elif kind == "literal_error":
        yield _not_legal(place, document)
    elif kind == "value_error":
        yield _error(place.path, str(cause), _doc(place), document)
    elif kind == "string_pattern_mismatch":
        hint = "start with a letter or digit, then letters, digits, `.`, `_` or `-`, at most 64"
        yield _error(place.path, f"{show(place.value)} is no legal name", hint, document)
    elif kind in _RANGES:
        yield _error(place.path, f"must be {_range(kind, context)}, not {show(place.value)}", _doc(place), document)
    elif kind == "string_too_short":
        yield _error(place.path, "is empty", _doc(place), document)
    elif kind in ("too_short", "too_long"):
        bound = _count(kind, context)
        yield _error(place.path, f"must have {bound}", _doc(place), document)
    elif kind.endswith(("_type", "_parsing", "_from_float", "_size")):
        yield _wrong_type(place, document)
    else:
        yield _error(place.path, details["msg"], _doc(place), document)


def _range(kind: str, context: Mapping[str, object]) -> str:
    words = {
        "greater_than": ("above", "gt"),
        "greater_than_equal": ("at least", "ge"),
        "less_than": ("below", "lt"),
        "less_than_equal": ("at most", "le"),
    }
    if kind not in words:
        return "a finite number"
    word, name = words[kind]
    bound = context.get(name)
    return f"{word} {bound:g}" if isinstance(bound, int | float) else f"{word} {bound}"


def _count(kind: str, context: Mapping[str, object]) -> str:
    short = kind == "too_short"
    bound = context.get("min_length" if short else "max_length")
    return f"{'at least' if short else 'at most'} {bound} {'entry' if bound == 1 else 'entries'}"


def _wrong_type(place: _Place, document: Document) -> SpecError:
    takes = describe(place.annotation, place.metadata)
    hint = _doc(place)
    if place.annotation is str and isinstance(place.value, int | float):
        hint = f'quote it: "{show(place.value)}"'
    elif isinstance(place.value, dict) and item_of(place.annotation, list) is not None:
        hint = "it is a list: begin each entry with `- `"
    return _error(place.path, f"must be {takes}, not {show(place.value)}", hint, document)


def _not_legal(place: _Place, document: Document) -> SpecError:
    legal = [str(value) for value in _literals(place.annotation)]
    near = get_close_matches(str(place.value).lower(), legal, n=1, cutoff=0.5)
    hint = (f"did you mean {near[0]!r}? " if near else "") + f"legal: {', '.join(legal)}"
    return _error(place.path, f"{show(place.value)} is not known", hint, document)


def _literals(annotation: object) -> list[object]:
    parts = get_args(bare(annotation))
    flat: list[object] = []
    for part in parts:
        if isinstance(part, str):
            flat.append(part)
        elif part is not type(None):
            flat.extend(_literals(part))
    return flat


def _unknown_key(place: _Place, model: type[BaseModel], document: Document) -> SpecError:
    key = str(place.path[-1]) if place.path else ""
    owner = place.owner or model
    legal = list(owner.model_fields)
    near = get_close_matches(key.replace("-", "_"), legal, n=1, cutoff=0.6)
    homes = [] if near else _homes(key, model)
    if near:
        hint = f"did you mean {near[0]!r}? "
    elif homes:
        hint = f"it belongs to {' or '.join(homes[:3])}. "
    else:
        hint = ""
    return _error(place.path, "unknown key", f"{hint}legal here: {', '.join(legal)}", document)


def _homes(key: str, model: type[BaseModel], prefix: str = "", seen: tuple[type, ...] = ()) -> list[str]:
    """Where in a study a key of this name is legal."""
    found = []
    for name, field in model.model_fields.items():
        part = model_of(field.annotation) or model_of(item_of(field.annotation, list))
        if part is None or part in seen:
            continue
        if key in part.model_fields:
            found.append(f"{prefix}{name}")
        found.extend(_homes(key, part, f"{prefix}{name}.", (*seen, part)))
    return found


def _doc(place: _Place) -> str:
    name = place.path[-1] if place.path else None
    if place.owner is None or not isinstance(name, str) or name not in place.owner.model_fields:
        return ""
    return " ".join((place.owner.model_fields[name].description or "").split())


def _error(path: KeyPath, message: str, hint: str, document: Document) -> SpecError:
    file, line = document.where(path)
    return SpecError(message, file=file, line=line, key=dotted(path) or None, hint=hint or None)
