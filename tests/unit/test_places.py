"""The loop with several places: what runs at the same time, what runs alone, and what is kept, without an engine."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import autotune
from autotune.assembly import assemble
from autotune.cli.views import PlainView
from autotune.errors import EnvironmentFault
from autotune.events import Event, NeighboursChecked, StageStarted, TrialFinished, TrialStarted
from autotune.executor import NO_PLACE, NODE_LOST, TrialTask
from autotune.outcome import Broken, Infeasible, Measured, Outcome, Proposal, TrialRecord
from autotune.result import StudyResult, busy_seconds
from autotune.run import StudyRun
from autotune.space.config import EngineConfig
from autotune.study import Study, open_study
from autotune.testing.toy import OBJECTIVES, measured, record_of
from autotune.virtualtime import VirtualLoop
from tests.desk import STUDY

Slower = Callable[[TrialTask, int], float]
"""Share of its speed that a trial keeps beside so many others."""


class Pretended:
    """An executor without engines. Speed follows from the configuration and from who else runs."""

    def __init__(self, slower: Slower = lambda task, others: 1.0) -> None:
        self.slower = slower
        self.opened: list[int] = []
        self.busy: dict[int, TrialTask] = {}
        self.seen: list[tuple[str, int]] = []
        self.breaks: dict[int, Outcome] = {}
        self.rested = 0
        self.full = asyncio.Event()

    async def open(self, places: int) -> None:
        self.opened.append(places)

    async def room(self) -> None:
        return None

    async def run(self, place: int, task: TrialTask) -> TrialRecord:
        assert place not in self.busy, "one trial at a time at a place"
        self.busy[place] = task
        await asyncio.sleep(0.05)
        if task.proposal.origin == "sampler":  # a busy host takes longer for a proposal than such a trial takes
            if len(self.busy) == self.opened[-1]:
                self.full.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.full.wait(), 2)
        others = len(self.busy) - 1
        # All that are measured beside each other end together, other trials not in the order of their begin.
        await asyncio.sleep(0.05 if task.proposal.origin == "beside" else 0.02 * (1 + task.number % 3))
        del self.busy[place]
        self.seen.append((task.proposal.origin, others + 1))
        share = self.slower(task, others)
        args = dict(task.proposal.config.args)
        speed = 100.0 + float(str(args.get("max_num_seqs") or 16)) + (50 if args.get("quantization") else 0)
        noise = 1 + 0.002 * (task.number * 7919 % 11 - 5) / 5
        figures = {"output_throughput": speed * share * noise, "ttft_p90_ms": 100 / share / noise}
        outcome = self.breaks.pop(task.number, None) or measured(figures, level=4.0)
        return TrialRecord(task.number, task.proposal, outcome, 0.0, 1.0, 1, place=place, attempt=task.attempt)

    async def rest(self) -> None:
        assert not self.busy
        self.rested += 1

    async def close(self) -> None:
        return None


class Told:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def notify(self, event: Event) -> None:
        self.events.append(event)

    @property
    def checks(self) -> list[tuple[int, str]]:
        return [(one.places, one.verdict) for one in self.events if isinstance(one, NeighboursChecked)]


def study_in(folder: Path, *settings: str, places: int = 4) -> Study:
    path = folder / "tiny.yaml"
    path.write_text(STUDY)
    wanted = [f"hardware.gpus={places}", f"hardware.parallel_trials={places}", "search.trials=10", *settings]
    return open_study(path, wanted)


async def run_in(study: Study, executor: Pretended, told: Told | None = None) -> StudyResult:
    parts = await assemble(study)
    try:
        return await StudyRun(parts, parts.store, told or Told(), executor).run()
    finally:
        parts.close()


def origins(records: Sequence[TrialRecord]) -> list[str]:
    return [record.proposal.origin for record in records]


async def test_trials_run_beside_each_other_and_what_is_proven_runs_alone(tmp_path: Path) -> None:
    executor, told = Pretended(), Told()
    result = await run_in(study_in(tmp_path), executor, told)
    assert told.checks == [(4, "undisturbed")]
    assert executor.opened[0] == 4 and executor.rested == 1
    alone = {"baseline", "alone", "confirm"}
    assert {count for origin, count in executor.seen if origin in alone} == {1}
    assert max(count for origin, count in executor.seen if origin == "sampler") == 4
    assert {count for origin, count in executor.seen if origin == "beside"} == {4}
    counted = [r for r in result.records if r.proposal.origin in ("baseline", "sampler", "expert")]
    assert len(counted) == 10, "no trial more than the budget, whatever runs at the same time"
    assert len({r.config.hash for r in counted}) == 10
    assert [r.number for r in result.records] == list(range(len(result.records)))


async def test_a_named_rival_is_proven_beside_the_finalists(tmp_path: Path) -> None:
    """It is measured in every round, the summary compares the winner, or what is kept, with it, and it may win."""
    slow, fast = ("confirm.against={published: {args: {max_num_seqs: " + seqs + "}}}" for seqs in ("20", "500"))
    best = "baseline={args: {max_num_seqs: 500}}"
    for where, settings, said in (
        ("a", (slow,), "over published: x"),
        ("b", (fast,), "published: is what is recommended"),
        ("c", (slow, best, "search.trials=1"), "today's over published: x"),
    ):
        (tmp_path / where).mkdir()
        short = ("search.trials=3", "confirm.rounds=2", "confirm.minimise=false")
        result = await run_in(study_in(tmp_path / where, *short, *settings, places=1), Pretended())
        notes = [one.proposal.note for one in result.records if one.proposal.origin == "confirm"]
        assert notes.count("to compare with: published") == notes.count("what you run today") > 1
        assert any(said in line for line in result.summary), result.summary


async def test_where_no_configuration_holds_the_limits_the_nearest_is_named(tmp_path: Path) -> None:
    limits = "slos=[{metric: ttft, percentile: 90, limit: 80ms}]"
    result = await run_in(study_in(tmp_path, "search.trials=1", limits, places=1), Pretended())
    nearest = min(result.records, key=result.objectives.rank)
    said = (
        rf"Keep what you run today\. .* the nearest was trial {nearest.number}, TTFT p90 \d+\.?\d* ms, limit 80\.0 ms"
    )
    assert any(re.match(said, line) for line in result.summary), result.summary


async def test_places_that_disturb_each_other_are_given_up(tmp_path: Path) -> None:
    """Four at a time lose a tenth; two lose nothing."""
    executor, told = Pretended(lambda task, others: 0.9 if others > 1 else 1.0), Told()
    result = await run_in(study_in(tmp_path), executor, told)
    assert told.checks == [(4, "disturbed"), (2, "undisturbed")]
    assert executor.opened == [4, 4, 2]
    assert max(count for origin, count in executor.seen if origin == "sampler") == 2
    sentence = next(one.sentence for one in told.events if isinstance(one, NeighboursChecked))
    assert "x0.9" in sentence and "fewer at a time" in sentence
    assert any("4 at a time are disturbed" in line for line in result.summary)
    again = Told()
    await run_in(study_in(tmp_path), Pretended(), again)
    assert len(again.events) == 2, "the finished study is not measured again: it begins and ends"


async def test_rounds_that_differ_too_much_are_no_proof_of_a_disturbance(tmp_path: Path) -> None:
    """As on two H200, where a p95 TTFT jumped between 0.9 and 1.8 s alone too: fewer at a time, and the reason said."""
    executor = Pretended(lambda task, others: (0.6, 1.1)[task.proposal.ticket % 2] if others else 1.0)
    told = Told()
    result = await run_in(study_in(tmp_path, "search.trials=2", "confirm.rounds=0", places=2), executor, told)
    assert told.checks == [(2, "disturbed")]
    assert any("taken for disturbed, the rounds differ too much to tell" in line for line in result.summary)


async def test_a_check_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    study = study_in(tmp_path, places=2)

    class Killed(Pretended):
        async def run(self, place: int, task: TrialTask) -> TrialRecord:
            if len(self.seen) == 7:  # the baseline, two starts, a whole round of three, one alone
                raise asyncio.CancelledError
            return await super().run(place, task)

    with pytest.raises(asyncio.CancelledError):
        await run_in(study, Killed())
    told = Told()
    result = await run_in(study, Pretended(), told)
    assert told.checks == [(2, "undisturbed")]
    rounds = [r.proposal.ticket for r in result.records if r.proposal.origin == "beside" and r.proposal.ticket >= 0]
    measured_rounds = [r for r in result.records if r.proposal.origin == "alone" and isinstance(r.outcome, Measured)]
    assert len(set(rounds)) == 3 and 3 <= len(measured_rounds) <= 4


async def test_a_baseline_that_cannot_serve_beside_others_is_disturbed(tmp_path: Path) -> None:
    executor, told = Pretended(), Told()
    executor.breaks = {3 + 2: Infeasible("oom_serving", "out of memory beside the other")}
    await run_in(study_in(tmp_path, places=2), executor, told)
    assert told.checks == [(2, "disturbed")]
    assert executor.opened[-1] == 1


async def test_measurements_that_cannot_be_believed_beside_others_end_the_check(tmp_path: Path) -> None:
    class Starved(Pretended):
        async def run(self, place: int, task: TrialTask) -> TrialRecord:
            record = await super().run(place, task)
            if task.proposal.ticket >= 0 and task.proposal.origin == "beside" and place == 1:
                return replace(record, outcome=Broken("invalid_measurement", "the client could not keep up"))
            return record

    executor, told = Starved(), Told()
    await run_in(study_in(tmp_path, "search.trials=2", "confirm.rounds=0", places=2), executor, told)
    assert told.checks == [(2, "disturbed")] and executor.opened[-1] == 1

    class AllStarved(Pretended):
        async def run(self, place: int, task: TrialTask) -> TrialRecord:
            record = await super().run(place, task)
            if task.proposal.origin == "beside" and self.opened[-1] == 4:
                return replace(record, outcome=Broken("invalid_measurement", "the client could not keep up"))
            return record

    executor, told = AllStarved(), Told()
    more = study_in(tmp_path, "name=four", "search.trials=2", "confirm.rounds=0", places=4)
    await run_in(more, executor, told)
    assert told.checks == [(4, "disturbed"), (2, "undisturbed")], "too many at once are no sick host"


async def test_experts_begin_beside_a_baseline_that_nothing_depends_on(tmp_path: Path) -> None:
    executor, told = Pretended(), Told()
    settings = ["hardware.neighbour_check=false", "confirm.rounds=0", "space=h100-dense"]
    await run_in(study_in(tmp_path, *settings), executor, told)
    finished = [one.record.number if isinstance(one, TrialFinished) else None for one in told.events]
    begun = [one.proposal.origin for one in told.events[: finished.index(0)] if isinstance(one, TrialStarted)]
    assert begun[:2] == ["baseline", "expert"] and set(begun[1:]) == {"expert"}, "the search itself waits for it"


async def test_a_fault_that_ends_the_study_beside_others_is_raised_as_it_is(tmp_path: Path) -> None:
    executor = Pretended()
    executor.breaks = {3: Broken("driver_fault", "the card fell off the bus", stop=True)}
    with pytest.raises(EnvironmentFault, match="fell off the bus"):
        await run_in(study_in(tmp_path), executor)


async def test_trials_that_share_gpus_are_checked_as_many_as_fit_and_search_with_all_places(tmp_path: Path) -> None:
    executor, told = Pretended(), Told()
    shared = ["hardware.trial_gpus=4", "baseline.args.tensor_parallel_size=2", "search.trials=6", "confirm.rounds=0"]
    await run_in(study_in(tmp_path, *shared), executor, told)
    assert told.checks == [(2, "undisturbed")], "two baselines of two GPUs fill the four"
    assert executor.opened == [4, 2, 4]


async def test_a_trial_is_charged_for_its_layout_where_gpus_are_shared_and_for_all_of_its_place_otherwise(
    tmp_path: Path,
) -> None:
    charged = {}
    for name, settings in (("own", []), ("shared", ["hardware.trial_gpus=4"])):
        parts = await assemble(study_in(tmp_path, f"name={name}", "hardware.gpus=8", *settings))
        charged[name] = [parts.gpus_of(EngineConfig.of({"tensor_parallel_size": size})) for size in (1, 2, 4)]
        parts.close()
    assert charged == {"own": [2, 2, 2], "shared": [1, 2, 4]}


async def test_the_last_trial_of_a_budget_that_breaks_is_run_again(tmp_path: Path) -> None:
    """Three places wait for the fourth, and take up what it leaves."""
    executor = Pretended()
    executor.breaks = {9: Broken("port_taken", "somebody sits on the port")}
    study = study_in(tmp_path, "hardware.neighbour_check=false", "confirm.rounds=0")
    result = await run_in(study, executor)
    assert origins(result.records).count("retry") == 1
    assert sum(isinstance(r.outcome, Measured) for r in result.records) == 10


def test_the_same_seed_gives_the_same_study_where_trials_end_in_the_same_order(tmp_path: Path) -> None:
    """In virtual time they do: on a busy host the order of two that end within 20 ms would be the host's."""
    hashes = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            result = runner.run(run_in(study_in(tmp_path / name, "confirm.rounds=0"), Pretended()))
        hashes.append([record.config.hash for record in result.records])
    assert hashes[0] == hashes[1]


class Shrinking(Pretended):
    """Nodes go away: at some places nothing can be placed any more, at others a node is lost now and then."""

    def __init__(self, gone: set[int]) -> None:
        super().__init__()
        self.gone = gone

    async def run(self, place: int, task: TrialTask) -> TrialRecord:
        record = await super().run(place, task)
        if task.number >= 1 and place in self.gone:
            return replace(record, outcome=Broken(NO_PLACE, "no node is free"))
        if task.number in (2, 4, 5, 7):
            return replace(record, outcome=Broken(NODE_LOST, "the node is gone"))
        return record


async def test_lost_nodes_cost_their_trials_and_a_lost_place_is_given_up(tmp_path: Path) -> None:
    study = study_in(tmp_path, "hardware.neighbour_check=false", "confirm.rounds=0", places=4)
    result = await run_in(study, Shrinking({3}))
    measured_ones = [r for r in result.records if isinstance(r.outcome, Measured)]
    assert len(measured_ones) == len({r.config.hash for r in measured_ones}) == 10
    assert not any(r.proposal.origin == "sentinel" for r in result.records), "no doubt of the machine"
    given_up = [r for r in result.records if isinstance(r.outcome, Broken) and r.outcome.cause == NO_PLACE]
    assert [r.place for r in given_up] == [3]


async def test_without_a_place_the_study_stops_and_goes_on_later(tmp_path: Path) -> None:
    study = study_in(tmp_path, "hardware.neighbour_check=false", "confirm.rounds=0", places=2)
    with pytest.raises(EnvironmentFault, match="no place is left: no node is free"):
        await run_in(study, Shrinking({0, 1}))
    result = await run_in(study, Pretended())
    assert sum(isinstance(r.outcome, Measured) for r in result.records) == 10


def test_plain_lines_say_each_stage_of_each_trial_once() -> None:
    out = io.StringIO()
    view = PlainView(OBJECTIVES, EngineConfig(), out)
    for detail in ("1 of 9", "2 of 9", "3 of 9"):
        for number in (4, 5):
            view.notify(StageStarted(number, "measure", detail))
    assert [line[9:] for line in out.getvalue().splitlines()] == ["trial 4: measure", "trial 5: measure"]


async def test_a_study_that_goes_on_takes_its_recommendation_back(tmp_path: Path) -> None:
    study = study_in(tmp_path, "search.trials=2", "confirm.rounds=0", places=1)
    await run_in(study, Pretended())
    said = autotune.read(study.path).recommendation
    assert said is not None
    await run_in(study, Pretended())
    assert autotune.read(study.path).recommendation == said, "nothing was measured"

    class Killed(Pretended):
        async def run(self, place: int, task: TrialTask) -> TrialRecord:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await run_in(study_in(tmp_path, "search.trials=3", "confirm.rounds=0", places=1), Killed())
    assert autotune.read(study.path).recommendation is None


def test_trials_at_the_same_time_take_their_seconds_once() -> None:
    records = [
        replace(
            record_of(number, Proposal(EngineConfig.of({"n": number})), measured({})), started_at=at, seconds=seconds
        )
        for number, (at, seconds) in enumerate(
            [(100.0, 60.0), (100.0, 40.0), (130.0, 50.0), (400.0, 5.0), (401.0, 1.0)]
        )
    ]
    assert busy_seconds(records) == busy_seconds(records[::-1]) == 85.0
    assert busy_seconds([]) == 0.0
