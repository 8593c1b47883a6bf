"""`autotune clean` ends what dead runs left, says so, and touches nothing else."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from autotune.cli.clean import clean
from autotune.engine.cleanup import find_leftovers
from autotune.engine.runs import StartRecord, read_runs, remember_start, runs_folder, write_json
from autotune.host.processes import ProcessId, boot_id, start_ticks

RUNNER = CliRunner()
APP = typer.Typer()
APP.command()(clean)


@pytest.fixture
def dead_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, subprocess.Popen[bytes], Path]]:
    """A run whose tuner is gone, with a process and a temporary folder."""
    monkeypatch.setenv("AUTOTUNE_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run = secrets.token_hex(8)
    gone = {"pid": os.getpid(), "ticks": 1, "boot": ProcessId.of(os.getpid()).boot}  # type: ignore[union-attr]
    write_json(runs_folder() / f"{run}.json", {"run": run, "tuner": gone, "started_at": 0.0})
    scratch = tmp_path / "autotune-left"
    scratch.mkdir()
    remember_start(StartRecord(run, "start", None, None, str(scratch)))
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env={**os.environ, "AUTOTUNE_RUN": run}
    )
    yield run, process, scratch
    process.kill()
    process.wait()


def test_dry_run_only_says(dead_run: tuple[str, subprocess.Popen[bytes], Path]) -> None:
    run, process, scratch = dead_run
    result = RUNNER.invoke(APP, ["--dry-run"])
    assert result.exit_code == 0
    assert f"would end process {process.pid} of run {run}" in result.output
    assert process.poll() is None
    assert scratch.is_dir()


def test_clean_ends_and_removes(dead_run: tuple[str, subprocess.Popen[bytes], Path]) -> None:
    run, process, scratch = dead_run
    data = json.loads(RUNNER.invoke(APP, ["--json"]).output)
    assert [entry["pid"] for entry in data["processes"]] == [process.pid]
    assert data["problems"] == []
    assert start_ticks(process.pid) is None
    assert not scratch.exists()
    assert run not in [record.run for record in read_runs()]
    assert "nothing is left" in RUNNER.invoke(APP, []).output


def test_folder_that_is_none_of_ours_stays(dead_run: tuple[str, subprocess.Popen[bytes], Path], tmp_path: Path) -> None:
    run, _, _ = dead_run
    precious = tmp_path / "precious"
    precious.mkdir()
    remember_start(StartRecord(run, "other", None, None, str(precious)))
    assert precious not in find_leftovers().folders


def test_session_of_a_pid_that_is_somebody_else_now(dead_run: tuple[str, subprocess.Popen[bytes], Path]) -> None:
    run, process, _ = dead_run
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True) as other:
        try:
            remember_start(StartRecord(run, "reused", None, ProcessId(other.pid, 1, boot_id())))
            assert [left.pid for left in find_leftovers().processes] == [process.pid]
        finally:
            other.kill()


def test_session_of_which_the_container_shows_no_number(
    dead_run: tuple[str, subprocess.Popen[bytes], Path],
) -> None:
    run, process, _ = dead_run
    remember_start(StartRecord(run, "outside", None, ProcessId(0, 0, boot_id())))
    assert [left.pid for left in find_leftovers().processes] == [process.pid]


def test_damaged_records_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_STATE", str(tmp_path / "state"))
    (runs_folder() / "abc.json").write_text('{"run": "abc", "tu')
    (runs_folder() / "abc.def.json").write_text("[]")
    assert find_leftovers().empty
