"""The reference of the study file, made from its types. `python -m autotune.spec.reference FILE` writes it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from autotune.spec.describe import describe, item_of, members, model_of
from autotune.spec.resolved import field_value, yaml_value
from autotune.spec.study import StudySpec

_INTRODUCTION = """\
# The study file

<!-- Made from autotune/spec/study.py by `python -m autotune.spec.reference docs/study-file.md`; do not edit. -->

A study is one YAML file. `autotune init MODEL` writes a commented one, `autotune validate STUDY` checks one and prints
it with every default filled in, `autotune run STUDY` runs it. Two keys are enough:

```yaml
name: first
model: Qwen/Qwen3-8B
```

**Quantities.** Durations are numbers of seconds or text with a unit (`500ms`, `20s`, `4h`, `1h30m`); sizes have a unit
(`80GiB`, `512MiB`; `512M` is binary, as in vLLM); shares are `5%` or `0.05`.

**Arguments.** `args` hold vLLM's own argument names with underscores, nested ones with a dot
(`compilation_config.mode`). `null` leaves an argument out.

**Secrets.** A study file is stored and shown, so a token or key that stands in it is refused. Write `${NAME}` in `env`;
it is read from the environment when an engine starts.

**Changes from the command line.** `--set search.trials=5` lays one value over the file; `--set 'load.levels=[8, 16]'`
and `--set objectives[0].percentile=90` work too.

**Mistakes.** All of them are reported at once, each with file, line, key, what is legal and the nearest name; the exit
code is 2. Anchors, aliases and `<<` merges are fine; tags, repeated keys and files above 256 KiB are not.

**Editors.** A schema ships with the package. This first line makes editors find it (`autotune init` writes it):

```yaml
# yaml-language-server: $schema=../autotune/data/study.schema.json
```
"""


def reference_text() -> str:
    """The whole reference as Markdown: one table for each part of a study."""
    sections = [_INTRODUCTION]
    for part, places in _parts().items():
        title = "The study" if part is StudySpec else ", ".join(f"`{place}`" for place in places)
        level = "##" if part is StudySpec or places[0].count(".") == 0 else "###"
        sections.append(f"{level} {title}\n\n{_sentence(part.__doc__)}\n\n{_table(part)}\n")
    return "\n".join(sections)


def _parts() -> dict[type[BaseModel], list[str]]:
    """Every part of a study in the order of the file, with all places where it can stand."""
    found: dict[type[BaseModel], list[str]] = {StudySpec: [""]}

    def visit(part: type[BaseModel], prefix: str) -> None:
        for place, inner in _inner_parts(part, prefix):
            first = inner not in found
            found.setdefault(inner, []).append(place)
            if first:
                visit(inner, f"{place}.")

    visit(StudySpec, "")
    return found


def _inner_parts(part: type[BaseModel], prefix: str) -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in part.model_fields.items():
        for annotation, suffix in _holders(field.annotation):
            inner = model_of(annotation)
            if inner is not None:
                yield f"{prefix}{name}{suffix}", inner


def _holders(annotation: object) -> Iterator[tuple[object, str]]:
    yield annotation, ""
    for kind, suffix in ((list, "[]"), (dict, ".NAME")):
        item = item_of(annotation, kind)
        if item is not None:
            yield item, suffix


def _table(part: type[BaseModel]) -> str:
    rows = ["| key | takes | default | meaning |", "|---|---|---|---|"]
    for name, field in part.model_fields.items():
        cells = (f"`{name}`", _takes(field), _default(part, name, field), _sentence(field.description))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def _takes(field: FieldInfo) -> str:
    inner = model_of(field.annotation)
    words = describe(field.annotation, tuple(field.metadata))
    if inner is not None:
        words = words.replace(describe(inner), "a mapping, see below")
    for kind in (list, dict):
        item = item_of(field.annotation, kind)
        held = model_of(item) if item is not None else None
        if held is not None:
            words = words.replace(describe(held), "a mapping, see below")
    return words + _bounds(field)


def _bounds(field: FieldInfo) -> str:
    """Limits of a number, in words."""
    marks = [*field.metadata]
    for one in members(field.annotation):
        marks += list(getattr(one, "__metadata__", ()))
    found: dict[str, list[float]] = {}
    for mark in marks:
        for inner in getattr(mark, "metadata", [mark]):
            for kind in ("gt", "ge", "lt", "le"):
                if getattr(inner, kind, None) is not None:
                    found.setdefault(kind, []).append(float(getattr(inner, kind)))
    low = max(((max(found[kind]), kind == "gt") for kind in ("gt", "ge") if kind in found), default=None)
    high = min(((min(found[kind]), kind != "lt") for kind in ("lt", "le") if kind in found), default=None)
    words = []
    if low is not None:
        words.append(f"{'above' if low[1] else 'at least'} {low[0]:g}")
    if high is not None:
        words.append(f"{'at most' if high[1] else 'below'} {high[0]:g}")
    return f"; {', '.join(words)}" if words else ""


def _default(part: type[BaseModel], name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "**needed**"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return ""
    if isinstance(value, BaseModel):
        given = {key: field_value(type(value), key, getattr(value, key)) for key in sorted(value.model_fields_set)}
        return f"`{yaml_value(given)}`" if given else "its own defaults"
    if isinstance(value, list) and value and isinstance(value[0], BaseModel):
        shown = [
            {key: getattr(item, key) for key in type(item).model_fields if key in item.model_fields_set}
            for item in value
        ]
        return f"`{yaml_value(shown)}`"
    return f"`{yaml_value(field_value(part, name, value))}`"


def _sentence(text: str | None) -> str:
    return " ".join((text or "").split())


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference_text(), encoding="utf-8")
