"""What is printed is what was meant, and Ctrl-C ends without a traceback, at whatever moment."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.emoji import Emoji
from typer.core import TyperGroup

from autotune.cli.app import main
from autotune.cli.commands import app

INTERRUPTED = """
import os, signal, sys
class Interrupt:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "autotune.cli.commands":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt)
from autotune.cli.app import main
main()
"""
PRINTS = """
import sys, types
sys.modules["autotune.cli.commands"] = types.SimpleNamespace(app=lambda: print("x" * 9999))
from autotune.cli.app import main
main()
"""
"""A command that prints, without the second that the real ones take to load."""


def test_a_mistake_in_line_100_has_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rich has an emoji for ``:100:``."""
    study = tmp_path / "s[bold]tudy.yaml"
    study.write_text("model: llama-3.1-8b\n" + "# nothing\n" * 98 + "bogus: 1\n")
    monkeypatch.setattr(sys, "argv", ["autotune", "validate", str(study)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"{study}:100: bogus: unknown key" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["explain", "/dev/null"], "is empty"),
        (["show", "x.yaml", "--trial", "1", "--refused"], "does not go with --trial"),
        (["dashboard", "x.yaml", "--port", "99999"], "--port"),
        (["spaces", "--gpus", "-1"], "--gpus"),
        (["bench", "ftp://x"], "begin it with http://"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_cannot_be_meant_is_refused(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["autotune", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_no_word_of_the_help_is_an_emoji() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    for name, command in group.commands.items():
        told = [command.help or "", *(getattr(parameter, "help", None) or "" for parameter in command.params)]
        for text in told:
            assert Emoji.replace(text) == text, name


def test_ctrl_c_while_the_commands_are_loaded_is_no_traceback() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, preexec_fn=_foreground
    )
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


def test_a_full_disk_behind_what_is_printed_is_said_in_words() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", PRINTS], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    said = "error: standard output cannot be written: No space left on device\n  make room there (df -h)\n"
    assert (ended.returncode, ended.stderr) == (3, said)


def _foreground() -> None:
    """As a shell starts what it waits for; a test runner in the background has Ctrl-C ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
