"""Every format that can be adopted, in the order in which they are asked. One more is one file and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autotune.adopt.judge import judge, version_of
from autotune.adopt.sources.compose import Compose
from autotune.adopt.sources.helm import Helm, LlmD, ProductionStack
from autotune.adopt.sources.kserve import KServe
from autotune.adopt.sources.kubernetes import Kubernetes
from autotune.adopt.sources.shell import Shell
from autotune.adopt.sources.systemd import Systemd
from autotune.adopt.sources.vllm_yaml import VllmYaml
from autotune.adopt.values import Adopted, Document, Reading, Source
from autotune.adopt.yaml_tree import TEMPLATE_HINT
from autotune.errors import SpecError
from autotune.space.arguments import ArgumentTable, shipped_table
from autotune.space.expression import nearest

_ALL: tuple[Source, ...] = (
    Systemd(), KServe(), Kubernetes(), Compose(), ProductionStack(), LlmD(), VllmYaml(), Helm(), Shell(),
)  # fmt: skip
SOURCES: dict[str, Source] = {source.name: source for source in _ALL}


def adopt_file(
    path: Path,
    *,
    table: ArgumentTable | None = None,
    format: str | None = None,
    engine: str | None = None,
    given: Mapping[str, str] | None = None,
) -> Adopted:
    """What a launch configuration starts, in the words of one vLLM.

    Args:
        path: the file.
        table: arguments of that vLLM. Default: the shipped ones of the release in the image's tag, else 0.32.0's.
        format: name of the source. Default: the first one that claims the file.
        engine: label of the engine where the file has several. Default: the first one.
        given: variables that the file leaves open.

    Raises:
        SpecError: the file cannot be read, is of no known format, or starts no vLLM.
    """
    return adopt_text(_read(path), path, table=table, format=format, engine=engine, given=given)


def adopt_text(
    text: str,
    path: Path,
    *,
    table: ArgumentTable | None = None,
    format: str | None = None,
    engine: str | None = None,
    given: Mapping[str, str] | None = None,
) -> Adopted:
    """The same from a text; `path` is where it stands."""
    document = Document(path, text, given or {})
    try:
        source = _source(document, format)
        readings = source.read(document)
    except RecursionError as error:
        raise SpecError("is nested too deeply to be read", file=path, hint="write its references out") from error
    if not readings:
        hint = "looked for: a `vllm serve` command, an image with vllm in its name, or vLLM's arguments"
        if "{{" in text:
            hint = TEMPLATE_HINT
        raise SpecError(f"nothing in this {source.title} starts vLLM", file=path, hint=hint)
    reading = _pick(readings, engine, path)
    adopted = judge(document, source.name, reading, table or shipped_table(version_of(reading.image)))
    others = [item.label for item in readings if item is not reading and item.label]
    if others:
        note = f"read {reading.label or 'the first engine'}; the file also starts {', '.join(others)} (--engine NAME)"
        return _noted(adopted, note)
    return adopted


def _noted(adopted: Adopted, note: str) -> Adopted:
    from dataclasses import replace

    return replace(adopted, notes=(*adopted.notes, note))


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise SpecError(f"cannot be read: {error.strerror}", file=path, hint="give the path of a file") from error
    except UnicodeDecodeError as error:
        raise SpecError("is no text in UTF-8", file=path, hint="give a text file") from error


def _source(document: Document, format: str | None) -> Source:
    if format is not None:
        if format not in SOURCES:
            near = nearest(format, SOURCES)
            hint = f"did you mean {near}? " if near else ""
            raise SpecError(f"there is no format {format!r}", hint=f"{hint}formats: {', '.join(SOURCES)}")
        return SOURCES[format]
    found = next((source for source in _ALL if source.claims(document)), None)
    if found is None:
        known = "; ".join(source.title for source in _ALL)
        raise SpecError("nothing in this file starts vLLM", file=document.path, hint=f"what can be read: {known}")
    return found


def _pick(readings: tuple[Reading, ...], engine: str | None, path: Path) -> Reading:
    if engine is None:
        return readings[0]
    labels = [reading.label for reading in readings]
    for reading in readings:
        if engine == reading.label or engine in reading.label.split("/"):
            return reading
    raise SpecError(f"there is no engine {engine!r} in this file", file=path, hint=f"engines: {', '.join(labels)}")
