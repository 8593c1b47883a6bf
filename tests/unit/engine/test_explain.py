"""`autotune explain` on real logs: what it prints, and that nothing in a log can trick the terminal."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from autotune.cli.explain import explain
from autotune.errors import SpecError

DATA = Path(__file__).parents[2] / "data"
LOGS = DATA / "failures" / "logs"

app = typer.Typer()
app.command()(explain)


def run(*arguments: str, given: str | None = None) -> str:
    result = CliRunner().invoke(app, list(arguments), input=given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("log", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem)
def test_every_log_is_explained(log: Path) -> None:
    answer = json.loads(run(str(log), "--json"))
    assert set(answer) >= {"class", "cause", "action", "lines", "advice", "quarantine", "warnings", "phases"}
    lines = log.read_bytes().decode().split("\n")
    for line in answer["lines"]:
        assert line["text"][:40] in lines[line["number"] - 1]
    if answer["class"] not in ("no_failure", "unknown"):
        assert answer["lines"] and answer["advice"]


def test_the_plain_words_name_line_cause_action_and_help() -> None:
    shown = run(str(LOGS / "tp_not_dividing_heads.log"))
    assert "tp_divisibility" in shown
    assert "54  " in shown and "must be divisible by tensor parallel size (2)" in shown
    assert "the configuration" in shown and "infeasible" in shown
    assert "tensor_parallel_size" in shown


def test_a_healthy_log_has_no_failure_but_its_warnings() -> None:
    shown = run(str(LOGS / "spec_ngram.log"))
    assert "No failure" in shown
    assert "Async scheduling not supported" in shown
    assert "vLLM 0.32.0" in shown


def test_standard_input_is_read() -> None:
    shown = run("-", "--json", given="vllm: error: unrecognized arguments: --nope\n")
    assert json.loads(shown)["class"] == "cli_unknown_argument"


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    """As in `autotune explain <(docker logs vllm)`: a pipe has no size."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("vllm: error: unrecognized arguments: --nope\n",))
    writer.start()
    shown = run(str(pipe), "--json")
    writer.join(5)
    assert json.loads(shown)["class"] == "cli_unknown_argument"


def test_the_kernel_log_is_looked_at(tmp_path: Path) -> None:
    kernel = tmp_path / "dmesg.txt"
    kernel.write_text("[1.0] NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus\n")
    shown = run(str(LOGS / "runtime_killengine.log"), "--kernel-log", str(kernel))
    assert "gpu_hardware" in shown and "host  " in shown


def test_text_from_a_log_is_no_markup_and_keeps_no_secret() -> None:
    line = "ValueError: [bold red]x[/] [link=file:///etc/passwd]y[/link] \x1b[31mred token hf_abcdefghijklmnop"
    shown = run("-", given=f"(Worker pid=7) ERROR 11-29 16:08:41 [x.py:9] {line}\n")
    assert "[bold red]x[/] [link=file:///etc/passwd]y[/link]" in shown
    assert "\x1b[31m" not in shown
    assert "hf_abc" not in shown


def test_a_log_that_is_not_there_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        CliRunner().invoke(app, [str(tmp_path / "no.log")], catch_exceptions=False)
