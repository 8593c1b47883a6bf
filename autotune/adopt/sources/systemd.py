"""A systemd unit: `ExecStart=` and `Environment=`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from autotune.adopt.commands import Launch, is_vllm_image, launch_of
from autotune.adopt.env_files import read_env_files
from autotune.adopt.layout import shell_line
from autotune.adopt.scripts import notes_of, settings_of_files
from autotune.adopt.shell_script import Call, read_script
from autotune.adopt.shell_state import Value
from autotune.adopt.traced import Traced, joined
from autotune.adopt.values import Document, EnvSetting, Insertion, Reading, Span
from autotune.adopt.words import Word

_KEY = re.compile(r"^(ExecStart|Exec|Image|Environment|EnvironmentFile)=", re.MULTILINE)
_PREFIXES = "-@:+!|"


class Systemd:
    """systemd's own quoting is close enough to a shell's for what people write; `$NAME` is from `Environment=`."""

    name = "systemd"
    title = "systemd unit, Podman's container unit"

    def claims(self, document: Document) -> bool:
        """It has a `[Service]` section, or the `[Container]` section of a Podman unit."""
        return re.search(r"^\[(Service|Container)\]\s*$", document.text, re.MULTILINE) is not None

    def read(self, document: Document) -> tuple[Reading, ...]:
        """The server of `ExecStart=`."""
        own: list[EnvSetting] = []
        names: list[str] = []
        for key, value in _lines(document.text):
            if key == "Environment":
                own += _pairs(value)
            elif key == "EnvironmentFile":
                names.append(value.text.strip().lstrip("-"))
        variables = read_env_files(names, document)
        in_files = {item.name for item in variables.settings}
        env = [*(item for item in own if item.name not in in_files), *variables.settings]  # a file wins in systemd
        given = {item.name: Value(item.traced(document.text)) for item in own if item.value is not None}
        given |= {name: Value(Traced.made(text)) for name, text in variables.values.items()}
        found = []
        image = next((value.text.strip() for key, value in _lines(document.text) if key == "Image"), "")
        for key, value in _lines(document.text):
            if key in ("ExecStart", "Exec"):
                launch = _launch(value, document, given, image if key == "Exec" else "")
                if launch is not None:
                    command = (value.at(0), value.at(len(value)))
                    found.append(_reading(launch, document, env, variables.notes, command))
        return tuple(found)


def _lines(text: str) -> Iterator[tuple[str, Traced]]:
    """Keys with their values; a value goes on where its line ends with a backslash, past lines of comment."""
    whole = Traced.of(text)
    for match in _KEY.finditer(text):
        start = match.end()
        parts: list[Traced] = []
        while start < len(text):
            found = text.find("\n", start)
            end = len(text) if found < 0 else found
            comment = bool(parts) and text[start:end].lstrip().startswith(("#", ";"))
            if not comment:
                parts.append(whole[start : end + 1])
            if not comment and not text[start:end].rstrip("\r").endswith("\\"):
                break
            start = end + 1
        value = joined(parts)
        yield match.group(1), value[: len(value.text.rstrip("\r\n"))]


def _single(value: Traced, sign: str) -> Traced:
    """`%%` stands for `%` everywhere, `$$` for `$` in commands."""
    parts, position = [], 0
    for match in re.finditer(re.escape(sign * 2), value.text):
        parts.append(value[position : match.start() + 1])
        position = match.end()
    return joined([*parts, value[position:]])


def _pairs(value: Traced) -> list[EnvSetting]:
    quoted = re.sub(r"\$", "\\\\$", value.text)  # systemd reads no variables here
    shown = value if quoted == value.text else Traced.made(quoted)
    reading = read_script(joined([Traced.made("env "), _single(shown, "%")]))
    words = reading.calls[0].words[1:] if reading.calls else ()
    return [_setting(word) for word in words if "=" in word.plain]


def _setting(word: Word) -> EnvSetting:
    name, _, value = word.plain.partition("=")
    return EnvSetting(name, value, word.text[len(name) + 1 :].span)


def _launch(value: Traced, document: Document, env: dict[str, Value], image: str) -> Launch | None:
    start = 0 if image else len(value.text) - len(value.text.lstrip(_PREFIXES))
    reading = read_script(_single(value[start:], "%"), document.given, env=env)
    for call in reading.calls:
        launch = launch_of(Call(call.words, tuple(env.items())), document.given)
        if launch is None and is_vllm_image(image):
            launch = Launch(call.words)
        if launch is not None:
            return replace(launch, image=launch.image or image)
    return None


def _reading(launch: Launch, document: Document, env: list[EnvSetting], notes: list[str], command: Span) -> Reading:
    settings, more = settings_of_files(launch, document)
    unread, others = notes_of(launch)
    match = _KEY.search(document.text)
    insertion = Insertion(match.start(), "", "\n") if match else None
    known = {item.name for item in env}
    inner = [item for item in launch.env if item.name not in known]
    return Reading(
        line=shell_line(launch.words, document.text, launch.head, [command]), settings=settings, env=(*env, *inner),
        env_style="unit", env_insertion=insertion, image=launch.image, gpus=launch.gpus, unread=unread,
        notes=(*notes, *launch.notes, *more, *others),
    )  # fmt: skip
