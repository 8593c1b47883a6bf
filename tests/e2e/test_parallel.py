"""Two trials at a time with the real command line: a kill loses nothing, and what is proven runs alone."""

from __future__ import annotations

from typing import Any

from autotune.outcome import Broken, Measured, TrialRecord
from tests.desk import Desk, events
from tests.e2e.test_resume import interrupted, kill, measured

TWO = ("--set", "hardware.gpus=2", "--set", "hardware.parallel_trials=2", "--set", "hardware.neighbour_check=false")


def overlap(first: TrialRecord, second: TrialRecord) -> float:
    """Seconds that two trials ran at the same time."""
    ends = [one.started_at + one.seconds for one in (first, second)]
    return min(ends) - max(first.started_at, second.started_at)


def test_two_trials_are_killed_and_the_study_goes_on(desk: Desk) -> None:
    desk.write()
    command = ("run", "tiny.yaml", *TWO, "--trials", "4")
    process = desk.start(*command, "--json", "--set", "load.window.requests=120")
    measuring: set[int] = set()
    assert process.stdout is not None
    for event in events(process.stdout):
        measuring |= {event["trial"]} if event["event"] == "stage" and event["stage"] == "measure" else set()
        if event["event"] == "trial_finished":
            measuring.discard(event["trial"])
        if len(measuring) == 2:
            break
    assert len(desk.engines()) >= 2, "two engines run while the tuner is killed"
    kill(process)
    desk.wait_until_nothing_is_left()
    kept = desk.result().records

    done = desk.run(*command, "--set", "load.window.requests=120")
    assert done.returncode == 0, done.stderr
    assert desk.left() == []
    records = desk.result().records
    assert set(map(repr, kept)) <= set(map(repr, records)), "a finished trial stays as it is"
    assert [record.number for record in records] == list(range(len(records)))
    lost = interrupted(records)
    assert set(lost) == measuring
    again = {r.config.hash: r for r in records if r.number > max(lost) and isinstance(r.outcome, Measured)}
    assert all(records[number].config.hash in again for number in lost), "both are run again"
    search = [r for r in measured(records) if r.proposal.origin != "confirm"]
    assert len({r.config.hash for r in search}) == len(search) == 4
    assert {r.place for r in search} == {0, 1}
    proof = [r for r in records if r.proposal.origin == "confirm"]
    assert proof and all(r.place == 0 for r in proof)
    others = [r for r in records if not isinstance(r.outcome, Broken)]
    assert not any(overlap(one, other) > 0 for one in proof for other in others if other is not one)
    pairs: Any = [(one, other) for one in search for other in search if one.number < other.number]
    assert any(overlap(one, other) > 0 for one, other in pairs), "they ran at the same time"
