"""A systemd unit: `ExecStart=` and `Environment=`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from autotune.adopt.commands import Launch, launch_of
from autotune.adopt.env_files import read_env_files
from autotune.adopt.layout import shell_line
from autotune.adopt.scripts import notes_of, settings_of_files
from autotune.adopt.shell_script import Call, read_script
from autotune.adopt.shell_state import Value
from autotune.adopt.traced import Traced, joined
from autotune.adopt.values import Document, EnvSetting, Insertion, Reading
from autotune.adopt.words import Word

_KEY = re.compile(r"^(ExecStart|Environment|EnvironmentFile)=", re.MULTILINE)
_PREFIXES = "-@:+!|"


class Systemd:
    """systemd's own quoting is close enough to a shell's for what people write; `$NAME` is from `Environment=`."""

    name = "systemd"
    title = "systemd unit"

    def claims(self, document: Document) -> bool:
        """It has a `[Service]` section."""
        return re.search(r"^\[Service\]\s*$", document.text, re.MULTILINE) is not None

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
        texts = {item.name: item.value for item in own if item.value is not None} | variables.values
        given = {name: Value(Traced.made(text)) for name, text in texts.items()}
        found = []
        for key, value in _lines(document.text):
            if key == "ExecStart":
                launch = _launch(value, document, given)
                if launch is not None:
                    found.append(_reading(launch, document, env, variables.notes))
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


def _launch(value: Traced, document: Document, env: dict[str, Value]) -> Launch | None:
    start = len(value.text) - len(value.text.lstrip(_PREFIXES))
    reading = read_script(_single(value[start:], "%"), document.given, env=env)
    for call in reading.calls:
        launch = launch_of(Call(call.words, ()), document.given)
        if launch is not None:
            return launch
    return None


def _reading(launch: Launch, document: Document, env: list[EnvSetting], notes: list[str]) -> Reading:
    settings, more = settings_of_files(launch, document)
    unread, others = notes_of(launch)
    match = _KEY.search(document.text)
    insertion = Insertion(match.start(), "", "\n") if match else None
    return Reading(
        line=shell_line(launch.words, document.text, launch.head), settings=settings, env=(*env, *launch.env),
        env_style="unit", env_insertion=insertion, image=launch.image, gpus=launch.gpus, unread=unread,
        notes=(*notes, *launch.notes, *more, *others),
    )  # fmt: skip
