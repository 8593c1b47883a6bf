"""`--set key=value`: one more word on top of a study file."""

from __future__ import annotations

import re
from collections.abc import Sequence

from autotune.errors import SpecError
from autotune.spec.document import Document, KeyPath, Plain, dotted, parse_document

FREE = frozenset({"args", "env", "fixed", "derive"})
"""Mappings whose keys are the user's own and may contain dots (`compilation_config.mode`)."""

_STEP = re.compile(r"([^.\[\]]+)|\[([0-9]+)\]")


def apply_overrides(document: Document, overrides: Sequence[str]) -> Document:
    """The document with every ``key=value`` laid over it, later ones winning. Values are read as YAML.

    Raises:
        SpecError: an override has no ``=``, no legal key, or goes through something that holds no keys.
    """
    for text in overrides:
        document = _apply(document, text)
    return document


def _apply(document: Document, text: str) -> Document:
    key, equals, raw = text.partition("=")
    key = key.strip()
    source = f"--set {key if len(key) <= 80 else key[:77] + '...'}"  # not the value, which may be a secret
    if not equals or not key:
        raise SpecError("needs a key and a value", file=source, hint="write key=value, such as search.trials=5")
    steps = [int(index) if index else name for name, index in _STEP.findall(key)]
    if re.sub(r"\.(?=\[)", "?", "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps)) != f".{key}":
        raise SpecError(
            f"{key!r} is no key", file=source, hint="write it with dots and indices, such as load.levels[0]"
        )
    value = parse_document(raw, source).data if raw.strip() else None
    path = _place(document.data, steps)
    data = _with(document.data, path, value, source, ())
    kept = {place: line for place, line in document.lines.items() if place[: len(path)] != path}
    return Document(document.file, data, kept, {**document.sources, path: source})


def _place(data: Plain, steps: Sequence[str | int]) -> KeyPath:
    """The path that is meant: below a free mapping the rest is one key, unless the file nests it."""
    path: list[str | int] = []
    current: Plain = data
    for position, step in enumerate(steps):
        free = bool(path) and path[-1] in FREE
        nested = isinstance(current, dict) and isinstance(step, str) and isinstance(current.get(step), dict)
        if free and not nested and all(isinstance(rest, str) for rest in steps[position:]):
            return (*path, ".".join(str(rest) for rest in steps[position:]))
        path.append(step)
        if isinstance(current, dict) and isinstance(step, str):
            current = current.get(step)
        elif isinstance(current, list) and isinstance(step, int) and step < len(current):
            current = current[step]
        else:
            current = None
    return tuple(path)


def _with(data: Plain, path: KeyPath, value: Plain, source: str, done: KeyPath) -> Plain:
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        data = [] if data is None else data
        if not isinstance(data, list) or step > len(data):
            length = len(data) if isinstance(data, list) else 0
            raise SpecError(
                f"has no entry {step}", file=source, key=dotted(done), hint=f"it has {length}; the first one is [0]"
            )
        tail = [_with(data[step] if step < len(data) else None, rest, value, source, (*done, step))]
        return [*data[:step], *tail, *data[step + 1 :]]
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise SpecError(
            f"holds no key {step!r}", file=source, key=dotted(done) or None, hint="set the whole value instead"
        )
    return {**data, step: _with(data.get(step), rest, value, source, (*done, step))}
