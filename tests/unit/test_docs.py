"""What README and docs show is real: commands, options, files, make targets, names of the Python interface."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.core import TyperCommand, TyperGroup
from typer.testing import CliRunner

import autotune
from autotune.cli.commands import app

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("examples/*.md")))
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in DOCS}
Command = TyperCommand | TyperGroup
ROOT_COMMAND = typer.main.get_group(app)


def commands(group: Command, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Command]]:
    """Every command with the words that call it; groups come too."""
    if words:
        yield words, group
    if isinstance(group, TyperGroup):
        for name, command in group.commands.items():
            assert isinstance(command, TyperCommand | TyperGroup)
            yield from commands(command, (*words, name))


COMMANDS = dict(commands(ROOT_COMMAND))


def code(text: str) -> Iterator[str]:
    """Lines of code blocks, continued lines joined, and code within sentences."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for block in blocks:
        yield from block.replace("\\\n", " ").splitlines()
    prose = re.sub(r"^```\w*\n.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    yield from (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose))


def calls(text: str) -> Iterator[list[str]]:
    """The words behind `autotune` of every command line that is shown."""
    for line in code(text):
        found = re.match(r"\s*(?:\$ |sudo |\S*bin/)?(?:python -m )?autotune( .*|$)", line)
        if found:
            for part in re.split(r"\s\s+autotune\b|\s&&\sautotune\b", found[1].split(" #")[0].split(" | ")[0]):
                yield shlex.split(part.replace("[", "").replace("]", ""), comments=True)


def resolved(words: list[str]) -> tuple[Command | None, list[str]]:
    """The command that is called and the words behind it."""
    for length in (2, 1):
        if tuple(words[:length]) in COMMANDS:
            return COMMANDS[tuple(words[:length])], words[length:]
    return None, words


SHOWN = [(name, words) for name, text in TEXTS.items() for words in calls(text) if words]


def test_there_are_docs() -> None:
    assert len(TEXTS) > 5
    assert len(SHOWN) > 20


@pytest.mark.parametrize(("name", "words"), SHOWN, ids=[f"{name}:{' '.join(words)}" for name, words in SHOWN])
def test_a_command_that_is_shown_exists(name: str, words: list[str]) -> None:
    command, rest = resolved(words)
    if command is None:
        assert words[0].startswith("--"), f"there is no command {words[0]!r}"
        command = ROOT_COMMAND
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    options = {word.split("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
    assert options <= {*known, "--help"}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_is_documented(words: tuple[str, ...]) -> None:
    assert any(" ".join(("autotune", *words)) in text for text in TEXTS.values())


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help(words: tuple[str, ...]) -> None:
    """A sentence of its own, and one for every option and argument."""
    done = CliRunner().invoke(app, [*words, "--help"])
    assert done.exit_code == 0, done.output
    command = COMMANDS[words]
    assert (command.help or "").strip()
    silent = [parameter.name for parameter in command.params if not getattr(parameter, "help", None)]
    assert silent == []


@pytest.mark.parametrize("name", TEXTS)
def test_links_lead_somewhere(name: str) -> None:
    targets = re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", TEXTS[name])
    assert [target for target in targets if not ((ROOT / name).parent / target).exists()] == []


def test_anchors_of_the_readme_exist() -> None:
    text = TEXTS["README.md"]
    heads = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in re.findall(r"^#+ (.+)$", text, re.M)}
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= heads


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = {word for text in TEXTS.values() for line in code(text) for word in re.findall(r"^make ([a-z-]+)", line)}
    assert shown and shown <= targets


def test_studies_that_are_run_exist() -> None:
    shown = {
        word
        for text in TEXTS.values()
        for line in code(text)
        for word in re.findall(r"\b(?:studies|examples)/\S+\.\w+", line)
    }
    assert {word for word in shown if word.endswith((".yaml", ".py")) and not (ROOT / word).is_file()} == set()


def test_python_that_is_shown_uses_what_exists() -> None:
    seen = False
    for name, text in TEXTS.items():
        for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            compile(block, name, "exec")
            names = set(re.findall(r"\bautotune\.([a-z_]\w*)\(", block)) if "import autotune\n" in block else set()
            seen |= bool(names)
            assert names <= set(autotune.__all__), name
    assert seen, "the README shows the Python interface"


def test_exit_codes_are_documented() -> None:
    for error in (autotune.SpecError, autotune.EnvironmentFault, autotune.StoreError):
        assert re.search(rf"\b{error.exit_code} [a-z]", TEXTS["README.md"])
    assert "130 interrupted" in TEXTS["README.md"]
