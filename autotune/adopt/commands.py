"""Finds vLLM in a command: past wrappers, in a shell that is started, in a container that is run."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from autotune.adopt.shell_script import Call, ScriptReading, read_script
from autotune.adopt.shell_state import Value
from autotune.adopt.traced import Traced, joined
from autotune.adopt.values import EnvSetting
from autotune.adopt.words import Word

_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server")
_SSH_SWITCHES = frozenset("46AaCfGgKkMNnqsTtVvXxYy")
"""Options of ssh without a value; every other one takes the next word."""
_SHELLS = ("sh", "bash", "dash", "zsh")
_IMAGE = re.compile(r"(^|[/_-])vllm([/:@_-]|$)")


@dataclass(frozen=True)
class Launch:
    """A vLLM server that a command starts.

    Attributes:
        words: its arguments, without `vllm serve`.
        env: variables that it gets.
        image: where it runs in a container.
        gpus: that the container gets, 0 where that is not said.
        reading: of the script that holds it, or None.
        certain: False where it is only reached under a condition that could not be decided.
        notes: what a reader should know.
        head: the words in front of the arguments.
        env_files: files of variables, as they are named.
    """

    words: tuple[Word, ...]
    env: tuple[EnvSetting, ...] = ()
    image: str = ""
    gpus: int = 0
    reading: ScriptReading | None = None
    certain: bool = True
    notes: tuple[str, ...] = ()
    head: tuple[Word, ...] = ()
    env_files: tuple[str, ...] = ()


def launches(reading: ScriptReading, given: Mapping[str, str]) -> list[Launch]:
    """Every vLLM server that a script starts, certain ones first."""
    found = [launch for call in reading.calls if (launch := launch_of(call, given, reading)) is not None]
    return sorted(found, key=lambda launch: not launch.certain)


def launch_of(call: Call, given: Mapping[str, str], reading: ScriptReading | None = None) -> Launch | None:
    """The vLLM server that one command starts, or None."""
    words, env = list(call.words), [env_setting(name, value) for name, value in call.env]
    for index, word in enumerate(words):
        name = word.plain.rpartition("/")[2]
        if name in ("docker", "podman", "nerdctl"):
            return _container(words[index:], env, call, reading)
        if name == "env":
            env += [_pair(w) for w in _leading_pairs(words[index + 1 :])]
        if name in _SHELLS or name == "ssh":
            inner = (_shell if name in _SHELLS else _remote)(words[index:], call, given, env)
            if inner is not None:
                return inner
        start = _start(words, index)
        if start:
            arguments = tuple(words[start:])
            return Launch(arguments, tuple(env), reading=reading, certain=call.certain, head=tuple(words[:start]))
    return None


def is_vllm_image(image: str) -> bool:
    """Whether a container image starts vLLM's server by itself."""
    return bool(_IMAGE.search(image.lower()))


def env_setting(name: str, value: Value) -> EnvSetting:
    """A variable of a script."""
    if value.unknown or (value.missing and value.text.text.strip('"').startswith("$")):
        return EnvSetting(name, None, reference=value.text.text, missing=value.missing)
    return EnvSetting(name, value.text.text, value.text.span, missing=value.missing)


def _start(words: Sequence[Word], index: int) -> int:
    """Index of the first argument of vLLM where its command begins at `index`, else 0."""
    plain = words[index].plain
    following = words[index + 1].plain if index + 1 < len(words) else ""
    if plain.rpartition("/")[2] == "vllm" and following == "serve":
        return index + 2
    if plain == "-m" and following in _MODULES:
        return index + 2
    if plain in ("-m",) and following in ("vllm", "vllm.entrypoints.cli.main"):
        return index + 3 if index + 2 < len(words) and words[index + 2].plain == "serve" else 0
    if plain.endswith(("vllm/entrypoints/openai/api_server.py", "/api_server.py")):
        return index + 1
    return 0


def _shell(words: Sequence[Word], call: Call, given: Mapping[str, str], env: list[EnvSetting]) -> Launch | None:
    """`bash -c "..." name args`."""
    for index, word in enumerate(words[1:], 1):
        if re.fullmatch(r"-[a-z]*c", word.plain) and index + 1 < len(words):
            script, rest = words[index + 1], words[index + 2 :]
            return _inside(read_script(script.text, given, tuple(rest[1:]), dict(call.env)), call, given, env)
        if not word.plain.startswith("-"):
            return None
    return None


def _remote(words: Sequence[Word], call: Call, given: Mapping[str, str], env: list[EnvSetting]) -> Launch | None:
    """`ssh [options] host "..."`; variables of this side do not reach the other."""
    index = 1
    while index < len(words) and words[index].plain.startswith("-"):
        index += 1 if len(words[index].plain) > 2 or words[index].plain[1:] in _SSH_SWITCHES else 2
    parts = [part for word in words[index + 1 :] for part in (Traced.made(" "), word.text)]
    return _inside(read_script(joined(parts[1:]), given), call, given, []) if parts else None


def _inside(reading: ScriptReading, call: Call, given: Mapping[str, str], env: Sequence[EnvSetting]) -> Launch | None:
    """The first server that a script inside a command starts."""
    inner = launches(reading, given)
    if not inner:
        return None
    first = inner[0]
    return Launch(first.words, (*env, *first.env), first.image, first.gpus, reading,
                  first.certain and call.certain, first.notes, first.head, first.env_files)  # fmt: skip


@lru_cache(maxsize=1)
def _docker_switches() -> frozenset[str]:
    text = (files("autotune.adopt") / "formats.toml").read_text(encoding="utf-8")
    return frozenset(tomllib.loads(text)["docker"]["switches"])


def _container(
    words: Sequence[Word], env: list[EnvSetting], call: Call, reading: ScriptReading | None
) -> Launch | None:
    """`docker run [options] image [arguments]`."""
    position = next((i for i, word in enumerate(words) if word.plain == "run"), None)
    if position is None:
        return None
    index, entrypoint, gpus, env_files = position + 1, "", 0, []
    inside: list[EnvSetting] = []
    while index < len(words) and words[index].plain.startswith("-"):
        option, equals, value_text = words[index].plain.partition("=")
        value = words[index]
        offset = len(option) + 1
        if not equals and option not in _docker_switches() and index + 1 < len(words):
            index += 1
            value, offset, value_text = words[index], 0, words[index].plain
        if option in ("-e", "--env"):
            inside.append(_pair(_tail(value, offset)))
        elif option == "--env-file":
            env_files.append(value_text)
        elif option == "--gpus":
            gpus = _gpu_count(value_text)
        elif option == "--entrypoint":
            entrypoint = value_text
        index += 1
    if index >= len(words):
        return None
    image, arguments = words[index].plain, words[index + 1 :]
    if entrypoint:
        call = Call((Word(_tail(words[index], 0).text.__class__.made(entrypoint)), *arguments), ())
        inner = launch_of(call, {})
        arguments = list(inner.words) if inner else arguments
    else:
        inner = launch_of(Call(tuple(arguments), ()), {})
        if inner is None and not is_vllm_image(image):
            return None
        arguments = list(inner.words) if inner else arguments
    return Launch(
        tuple(arguments), tuple(inside), image, gpus, reading, call.certain, (), tuple(words[: index + 1]),
        tuple(env_files),
    )  # fmt: skip


def _gpu_count(text: str) -> int:
    """`all` says nothing about the number."""
    plain = text.strip("\"'")
    if plain.isdigit():
        return int(plain)
    match = re.search(r"device=([\w,.:-]+)", plain)
    return len([item for item in match.group(1).split(",") if item]) if match else 0


def _leading_pairs(words: Sequence[Word]) -> list[Word]:
    pairs = []
    for word in words:
        if word.plain.startswith("-"):
            continue
        if "=" not in word.plain:
            break
        pairs.append(word)
    return pairs


def _pair(word: Word) -> EnvSetting:
    """`NAME=value`, or a name alone, which is taken from the environment of the caller."""
    name, equals, value = word.plain.partition("=")
    if not equals:
        return EnvSetting(name, None, reference=f"${{{name}}}")
    if not word.resolved:
        return EnvSetting(name, None, reference=value, missing=word.missing)
    return EnvSetting(name, value, word.text[len(name) + 1 :].span)


def _tail(word: Word, offset: int) -> Word:
    return Word(word.text[offset:], word.start, word.end, word.via, word.missing, word.unknown, word.certain)
