"""A study whose load stands at a share of the baseline's knee: climbed once, the same for every trial, kept."""

from __future__ import annotations

import re

import pytest

from autotune.outcome import Measured
from tests.desk import VIRTUAL, Desk

KNEE = (
    VIRTUAL.replace("  levels: [4]\n", "  knee: 0.5\n")
    .replace("trials: 5", "trials: 2")
    .replace("space:\n", "baseline: {args: {max_num_seqs: 16}}\nspace:\n")
)
"""Beyond 16 requests in flight the baseline lets them wait: no more throughput, ever longer to the first token."""


@pytest.mark.long
def test_the_load_is_placed_once_and_every_trial_gets_it(desk: Desk) -> None:
    desk.write(KNEE)
    done = desk.run("run", "tiny.yaml", "--set", "confirm.rounds=0")
    assert done.returncode == 0, done.stderr + done.stdout
    (told,) = re.findall(r"the load stands at c=(\d+); the baseline's knee is at c=(\d+)", done.stdout)
    stands, knee = map(int, told)
    assert stands == round(0.5 * knee)
    measured = [record.outcome for record in desk.result().records if isinstance(record.outcome, Measured)]
    assert len(measured) == 2, "what a busy host spoils is repeated"
    for outcome in measured:
        assert [level.level.value for level in outcome.load.levels] == [stands]
    climbed = {int(folder.name[5:]) for folder in (desk.folder / "tiny").glob("trial-*/knee-*")}
    assert climbed == {4 * 2**step for step in range(len(climbed))}, "one climb, upwards from 4"
    assert knee in climbed
    assert len(climbed) >= 3

    again = desk.run("run", "tiny.yaml", "--set", "confirm.rounds=0", "--set", "search.trials=3")
    assert again.returncode == 0, again.stderr
    assert "climbing" not in again.stdout
    last = [record.outcome for record in desk.result().records if isinstance(record.outcome, Measured)][-1]
    assert [level.level.value for level in last.load.levels] == [stands]
