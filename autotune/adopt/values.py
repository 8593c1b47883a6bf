"""What a source finds in a file, what is made of it, and the protocol of a source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from autotune.adopt.traced import NOWHERE, Traced
from autotune.adopt.words import Word
from autotune.adopt.yaml_tree import Plain
from autotune.space.config import EngineConfig

Span: TypeAlias = tuple[int, int]
"""Offsets in the file: first character, behind the last one."""
LineStyle: TypeAlias = Literal["shell", "items", "flow"]
"""How a command line is written: for a shell, as items of a YAML block list, of a flow list."""
EnvStyle: TypeAlias = Literal["pairs", "assignments", "mapping", "shell", "options", "unit"]
"""How variables are written: `- name:`/`value:`, `- A=b`, `A: b`, `export A=b`, `-e A=b`, `Environment=A=b`."""


@dataclass(frozen=True, slots=True)
class Setting:
    """An argument that is written as a key with a value.

    Attributes:
        name: of the argument, as the file means it, with underscores.
        value: what it says.
        key: where the key stands.
        span: where the value stands, quotes included.
        spelling: how the file writes the name.
        own: the key is a name of the chart's, not vLLM's own.
    """

    name: str
    value: Plain
    key: Span
    span: Span
    spelling: str
    own: bool = False


@dataclass(frozen=True, slots=True)
class EnvSetting:
    """A variable of the engine's environment.

    Attributes:
        name: of the variable.
        value: its text; None where it is taken from elsewhere.
        span: where the value stands.
        reference: what it refers to, for people; empty for a plain value.
        missing: variables that its value needs and that the file does not say.
    """

    name: str
    value: str | None
    span: Span | None = None
    reference: str = ""
    missing: tuple[str, ...] = ()

    def traced(self, text: str) -> Traced:
        """Its value with the places where it stands in the file's text; empty where it has none."""
        value = self.value or ""
        if self.span is not None and text[slice(*self.span)] == value:
            return Traced.of(value, self.span[0])
        return Traced.made(value)


@dataclass(frozen=True, slots=True)
class Insertion:
    """Where something new goes: `before` is written in front of it (white space, line break, list mark)."""

    offset: int
    before: str
    after: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A command line in a file.

    Attributes:
        words: arguments of vLLM, without the command itself.
        style: how it is written.
        insertion: where one more argument goes, None where there is no place.
        joined: flag and value are one word with `=`.
    """

    words: tuple[Word, ...]
    style: LineStyle
    insertion: Insertion | None = None
    joined: bool = False


@dataclass(frozen=True)
class Reading:
    """One engine in a file, as it is written.

    Attributes:
        label: which one it is, such as the container's or service's name.
        line: its command line, or None.
        settings: arguments that are keys of the file.
        env: variables.
        env_style: how variables are written.
        env_insertion: where one more variable goes.
        settings_insertion: where one more key goes.
        model: where it is said outside the command line.
        image: of the container.
        gpus: that it asks for, 0 where it does not say.
        unread: what could not be read, one sentence each.
        notes: what a reader should know.
    """

    label: str = ""
    line: Line | None = None
    settings: tuple[Setting, ...] = ()
    env: tuple[EnvSetting, ...] = ()
    env_style: EnvStyle = "shell"
    env_insertion: Insertion | None = None
    settings_insertion: Insertion | None = None
    model: str = ""
    image: str = ""
    gpus: int = 0
    unread: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where one argument of vLLM stands.

    Attributes:
        name: of the top-level argument, in the words of the vLLM that was asked about.
        written: its name in the file.
        names: every name below it that this place gives (dotted for nested ones).
        words: flag and values on a command line, or empty.
        setting: the key, or None.
    """

    name: str
    written: str
    names: tuple[str, ...]
    words: tuple[Word, ...] = ()
    setting: Setting | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something in the file that this vLLM does not take as it is.

    Attributes:
        name: as the file writes it.
        message: what happened to it.
        hint: what to do.
        fatal: the server would not start with it.
    """

    name: str
    message: str
    hint: str = ""
    fatal: bool = True


@dataclass(frozen=True)
class Adopted:
    """What people run today, read from one file.

    Attributes:
        path: the file.
        text: its content.
        format: name of the source that read it.
        reading: what is written there.
        model: Hugging Face id or path; empty where the file does not say it.
        config: arguments and environment in the words of this vLLM. Secrets are references (`${NAME}`).
        kept: names of arguments that stay in the file and are no part of a study, such as the port.
        unknown: what this vLLM does not know any more.
        unread: what could not be read.
        secrets: names of variables and arguments that hold secrets; only references are kept.
        exposed: those whose value stands in the file.
        notes: what a reader should know.
        places: where each argument stands.
        version: of the vLLM that the file starts, where it says so.
        asked: version of the vLLM whose words are used.
    """

    path: Path
    text: str
    format: str
    reading: Reading
    model: str
    config: EngineConfig
    kept: tuple[str, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    unread: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    exposed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    places: tuple[Place, ...] = ()
    version: str = ""
    asked: str = ""

    @property
    def left(self) -> tuple[str, ...]:
        """Those of `kept` that a study is without; the model, which it names by a key of its own, is none of them."""
        return tuple(name for name in self.kept if not (self.model and name in ("model", "model_tag")))

    def line_of(self, offset: int) -> int:
        """1-based line of an offset in the file."""
        return self.text.count("\n", 0, max(offset, 0)) + 1

    def line_of_argument(self, name: str) -> int | None:
        """1-based line where an argument stands, None where it is not written as one piece."""
        for place in reversed(self.places):
            if name == place.name or name in place.names:
                offset = place.setting.key[0] if place.setting else _offset(place.words)
                return self.line_of(offset) if offset >= 0 else None
        return None


def _offset(words: tuple[Word, ...]) -> int:
    """Where the flag is written: in the command, or in the variable that it came through."""
    if not words:
        return NOWHERE
    span = words[0].text.span
    return span[0] if span is not None else words[0].start


@dataclass(frozen=True)
class Document:
    """A file to be read.

    Attributes:
        path: where it is.
        text: its content.
        given: variables that the reader says, by name.
    """

    path: Path
    text: str
    given: Mapping[str, str] = field(default_factory=dict)

    def beside(self, name: str) -> str | None:
        """The text of a file beside this one, None where there is none or it lies elsewhere."""
        place = (self.path.parent / name).resolve()
        if not place.is_relative_to(self.path.parent.resolve()) or not place.is_file():
            return None
        try:
            return place.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None


class Source(Protocol):
    """Reads one format."""

    @property
    def name(self) -> str:
        """As `--format` takes it."""

    @property
    def title(self) -> str:
        """What it is, in a few words."""

    def claims(self, document: Document) -> bool:
        """Whether the file is of this format. Cheap; never raises but for a file that is broken."""

    def read(self, document: Document) -> tuple[Reading, ...]:
        """Every engine in the file, in its order.

        Raises:
            SpecError: the file is broken.
        """
