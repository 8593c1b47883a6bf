"""A pass that is asked to give way, and one that is killed: nothing is left, and the next one goes on."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from autotune.outcome import Measured
from autotune.study import open_study
from tests.desk import STUDY, Desk

NAME = "short/retune/0001/study.yaml"
TEXT = STUDY.replace("name: tiny\nmodel", "name: short\nmodel").replace(
    "max_num_seqs: {ladder: [2, 4, 8, 64]}", "max_num_seqs: {ladder: [2, 4]}"
)
RETUNE = """\
retune:
  budget: {configurations: 3}
  triggers: {canary: false}
"""


def measured(desk: Desk) -> int:
    store = open_study(desk.folder / NAME).existing_store()
    try:
        return sum(isinstance(record.outcome, Measured) for record in store.history())
    finally:
        store.close()


def wait_until_it_measures(process: subprocess.Popen[str], trial: int) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if f"trial {trial}: measure" in line:
            return
    raise AssertionError(f"it ended with {process.wait()} before that: {process.communicate()}")


@pytest.mark.slow
def test_a_pass_gives_way_is_killed_and_is_finished_by_a_third(desk: Desk) -> None:
    desk.write(TEXT + RETUNE, "short.yaml")
    assert desk.run("run", "short.yaml", "--trials", "1").returncode == 0

    asked = desk.start("retune", "short.yaml", "--force")
    wait_until_it_measures(asked, 1)
    assert desk.engines()
    asked.send_signal(signal.SIGTERM)
    _, errors = asked.communicate(timeout=30)
    assert asked.returncode == 130 and "gave way" in errors and "Traceback" not in errors
    desk.wait_until_nothing_is_left()
    kept = measured(desk)
    assert kept in (1, 2)  # the second trial may have ended before the signal came

    killed = desk.start("retune", "short.yaml")
    wait_until_it_measures(killed, 2)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    desk.wait_until_nothing_is_left()

    done = desk.run("retune", "short.yaml", "--json")
    assert done.returncode == 0, done.stderr
    ending = json.loads(done.stdout)
    assert ending["verdict"] in ("kept", "promoted")
    assert any("going on with the re-tuning" in reason for reason in ending["reasons"])
    assert not (desk.folder / "short/retune/0002").exists()
    passes = json.loads(desk.run("history", "short.yaml", "--json").stdout)["events"]
    assert [row["verdict"] for row in passes] == ["gave way", ending["verdict"]]
    assert passes[0]["gpu_hours"] > 0
    assert sorted(path.name for path in (desk.folder / "deploy").iterdir())[-1] == "current"

    service = desk.start("schedule", "short.yaml", "--cron", "0 3 1 1 *", "--timezone", "Europe/Berlin")
    assert service.stdout is not None
    assert "the next pass starts" in (line := service.stdout.readline()) and "01-01 03:00 CET" in line
    service.send_signal(signal.SIGTERM)
    said, errors = service.communicate(timeout=20)
    assert service.returncode == 130 and "stopped" in said and "Traceback" not in errors
