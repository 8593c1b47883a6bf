"""A shell command or script, `docker run` included."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

from autotune.adopt.commands import Launch, launches
from autotune.adopt.env_files import read_env_files
from autotune.adopt.layout import shell_line
from autotune.adopt.scripts import notes_of, settings_of_files
from autotune.adopt.shell_script import read_script
from autotune.adopt.traced import Traced
from autotune.adopt.values import Document, Insertion, Reading

_PROMPT = "$ "


class Shell:
    """Everything that is not YAML and no unit file is read as a script."""

    name = "shell"
    title = "shell command or script, `docker run` included"

    def claims(self, document: Document) -> bool:
        """A vLLM server is started in it."""
        return bool(_launches(document))

    def read(self, document: Document) -> tuple[Reading, ...]:
        """Every server that it starts."""
        readings = [_reading(launch, document) for launch in _launches(document)]
        if len(readings) < 2:
            return tuple(readings)
        return tuple(replace(one, label=_port(one) or str(number)) for number, one in enumerate(readings, 1))


def _port(reading: Reading) -> str:
    """What tells two servers of one host apart."""
    words = [word.plain for word in reading.line.words] if reading.line is not None else []
    named = [word.partition("=")[2] for word in words if word.startswith("--port=")]
    named += [after for word, after in pairwise(words) if word == "--port"]
    return next((text for text in named if text.isdigit()), "")


def _launches(document: Document) -> list[Launch]:
    text = Traced.of(document.text)
    if document.text.startswith(_PROMPT):
        text = text[len(_PROMPT) :]
    return launches(read_script(text, document.given, files=document.beside), document.given)


def _reading(launch: Launch, document: Document) -> Reading:
    settings, notes = settings_of_files(launch, document)
    unread, more = notes_of(launch)
    files = read_env_files(launch.env_files, document)
    own = {item.name for item in launch.env}
    env = (*(item for item in files.settings if item.name not in own), *launch.env)
    notes = (*notes, *files.notes)
    return Reading(
        line=shell_line(launch.words, document.text, launch.head), settings=settings, env=env,
        env_style="options" if launch.image else "shell", env_insertion=_env_insertion(launch, document),
        image=launch.image, gpus=launch.gpus, unread=unread, notes=(*launch.notes, *notes, *more),
    )  # fmt: skip


def _env_insertion(launch: Launch, document: Document) -> Insertion | None:
    """In front of the image as one more option, or in front of the command as a line of its own."""
    if not launch.head or launch.head[0].start < 0:
        return None
    if launch.image:
        start = launch.head[-1].start
        lead = re.search(r"\\\r?\n[ \t]*$", document.text[:start]) if start >= 0 else None
        return Insertion(start, "", f" {lead.group()}" if lead else " ") if start >= 0 else None
    line = document.text.rfind("\n", 0, launch.head[0].start) + 1
    indent = document.text[line:][: len(document.text[line:]) - len(document.text[line:].lstrip(" \t"))]
    return Insertion(line, indent, "\n")
