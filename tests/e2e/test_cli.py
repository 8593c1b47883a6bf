"""What goes wrong before a study can run: a sentence and an exit code, never a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.outcome import Infeasible, Measured
from tests.desk import STUDY, Desk

SEARCH_ONLY = ("--trials", "2", "--set", "confirm.rounds=0")


def test_a_wrong_study(desk: Desk) -> None:
    desk.write(STUDY.replace("output_tokens: 16", "output_tokens: many"))
    done = desk.run("run", "tiny.yaml")
    assert done.returncode == 2
    line = STUDY.splitlines().index("  output_tokens: 16") + 1
    assert f"tiny.yaml:{line}: load.output_tokens" in done.stderr
    assert not (desk.folder / "tiny").exists(), "nothing is begun"


@pytest.mark.parametrize(
    "words",
    [
        ["run", "missing.yaml"],
        ["run", "tiny.yaml", "--set", "search.trials"],
        ["run", "tiny.yaml", "--trials", "0"],
        ["run", "tiny.yaml", "--like", "missing.yaml"],
        ["run"],
        ["show", "tiny.yaml"],
        ["report", "tiny.yaml"],
        ["export", "tiny.yaml"],
        ["no-such-command"],
    ],
    ids=" ".join,
)
def test_wrong_words(desk: Desk, words: list[str]) -> None:
    desk.write()
    done = desk.run(*words)
    assert done.returncode == 2, done.stdout
    assert done.stderr.strip()
    assert "Traceback" not in done.stderr


def damage(database: Path, kind: str) -> None:
    database.parent.mkdir(exist_ok=True)
    if kind == "garbage":
        database.write_bytes(b"this is no database" * 400)
    elif kind == "folder":
        database.mkdir()
    else:
        database.touch()
        database.chmod(0o444)
        database.parent.chmod(0o555)


@pytest.mark.parametrize("kind", ["garbage", "folder", "read-only"])
def test_a_database_that_cannot_be_used(desk: Desk, kind: str) -> None:
    if kind == "read-only" and os.geteuid() == 0:
        pytest.skip("nothing is read-only for root")
    desk.write()
    database = desk.folder / "tiny" / "study.db"
    damage(database, kind)
    try:
        done = desk.run("run", "tiny.yaml")
    finally:
        database.parent.chmod(0o755)
    assert done.returncode == (3 if kind == "read-only" else 4), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert str(database.relative_to(desk.folder).parent) in done.stderr


def test_a_baseline_that_cannot_serve(desk: Desk) -> None:
    """The study says so and stops, again and again, until the baseline is repaired; then it runs."""
    desk.write(STUDY + "baseline: {args: {gpu_memory_utilization: 0.1}}\n")
    for _ in range(2):
        done = desk.run("run", "tiny.yaml", *SEARCH_ONLY)
        assert done.returncode == 3, done.stdout
        assert "the baseline cannot serve" in done.stderr
        assert "baseline.args" in done.stderr
    assert {type(record.outcome) for record in desk.result().records} == {Infeasible}

    desk.write(STUDY + "baseline: {args: {gpu_memory_utilization: 0.8}}\n")
    done = desk.run("run", "tiny.yaml", *SEARCH_ONLY)
    assert done.returncode == 0, done.stderr
    records = [record for record in desk.result().records if isinstance(record.outcome, Measured)]
    assert records[0].proposal.origin == "baseline"
    assert records[0].config.get("gpu_memory_utilization") == 0.8
    assert len(records) == 2


def test_a_storage_that_cannot_be_made(desk: Desk) -> None:
    desk.write(STUDY + "storage: file/results\n")
    (desk.folder / "file").touch()
    done = desk.run("run", "tiny.yaml")
    assert done.returncode == 3
    assert "choose another `storage:`" in done.stderr
    assert "Traceback" not in done.stderr
