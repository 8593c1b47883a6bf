"""Stop rule, drift, costs, reuse and the view for the dashboard."""

from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from autotune.engine.protocol import Resolved
from autotune.outcome import Broken, Infeasible, Outcome, Proposal, TrialRecord
from autotune.search.drift import drift_of, next_sentinel
from autotune.search.objectives import Slo
from autotune.search.proposer import create_proposer
from autotune.search.restart import CostModel, RunningEngine, efficiency, running_engine
from autotune.search.reuse import Reuse, reuse
from autotune.search.stop import StopRule, trials_without_gain
from autotune.search.view import OptunaView
from autotune.space.config import EngineConfig, FrozenValue
from autotune.space.defaults import lowers
from autotune.space.space import Parameter
from autotune.spec.study import SearchSpec
from autotune.testing.toy import BASELINE, OBJECTIVES, measured, play, record_of, toy_space


def study(trials: int = 14, name: str = "random") -> list[TrialRecord]:
    return play(create_proposer(name, toy_space(), OBJECTIVES, EngineConfig(), 2, (), lambda _: None, BASELINE), trials)


def record(number: int, outcome: Outcome, origin: str = "sampler", seconds: float = 100.0) -> TrialRecord:
    return record_of(number, Proposal(EngineConfig.of({"n": number}), origin=origin), outcome, seconds=seconds, gpus=2)


def speed(value: float, ttft: float = 100.0) -> Outcome:
    return measured({"output_throughput": value, "ttft_p95_ms": ttft})


class TestStop:
    rows = (
        record(0, speed(100), "baseline"),
        record(1, speed(120)),
        record(2, Infeasible("refused", "x", started=False)),
        record(3, Broken("port_taken", "x")),
        record(4, speed(90)),
        record(5, speed(100), "sentinel"),
        record(6, speed(119)),
    )

    def check(self, elapsed: float = 0.0, **limits: float) -> str | None:
        stop = StopRule(**limits).check(self.rows, OBJECTIVES, elapsed=elapsed)  # type: ignore[arg-type]
        return stop.sentence if stop else None

    def test_each_limit_has_its_sentence(self) -> None:
        assert self.check(trials=4) == "4 of 4 trials are done"
        assert self.check(trials=3) == "4 trials are done, the limit is 3"
        assert self.check(trials=5) is None
        assert self.check(elapsed=7300, wall_clock=7200) == "the wall clock of 2h is used up"
        assert self.check(elapsed=23, wall_clock=22) == "the wall clock of 22s is used up"
        assert self.check(gpu_hours=0.3) == "0.389 of 0.3 GPU hours are used"
        assert self.check(gpu_hours=0.4) is None
        assert self.check(patience=2) == "the front has not gained in the last 2 measured trials"
        assert self.check(patience=3) is None

    def test_patience_begins_with_the_first_feasible_trial(self) -> None:
        assert trials_without_gain([record(0, Infeasible("oom_start", "x"))] * 3, OBJECTIVES) == 0

    def test_it_is_made_from_the_study_file(self) -> None:
        rule = StopRule.of(SearchSpec(trials=7, wall_clock="2h", gpu_hours=3, patience=5))
        assert rule == StopRule(7, 7200.0, 3.0, 5)


class TestDrift:
    def rows(self, *sentinels: float) -> list[TrialRecord]:
        watched = [record(index + 1, speed(value), "sentinel") for index, value in enumerate(sentinels)]
        return [record(0, speed(1000), "baseline"), *watched]

    @pytest.mark.parametrize(
        ("sentinels", "verdict"),
        [((), "steady"), ((1010, 985), "steady"), ((1000, 930), "widen"), ((800,), "widen"), ((800, 790), "stop")],
    )
    def test_verdicts(self, sentinels: tuple[float, ...], verdict: str) -> None:
        assert drift_of(self.rows(*sentinels), OBJECTIVES).verdict == verdict

    def test_a_baseline_that_no_longer_runs_stops(self) -> None:
        rows = [*self.rows(1000), record(5, Infeasible("oom_start", "x"), "sentinel")]
        assert drift_of(rows, OBJECTIVES).verdict == "stop"

    def test_the_sentinel_is_due_after_so_many_trials(self) -> None:
        rows = study(12)
        proposal = next_sentinel(rows, 10)
        assert proposal is not None and proposal.config == BASELINE and proposal.origin == "sentinel"
        watched = [*rows, record_of(12, proposal, speed(1))]
        assert next_sentinel(watched, 10) is None
        assert next_sentinel(rows[:9], 10) is None and next_sentinel(rows, 0) is None


class TestCosts:
    def test_seconds_are_learnt_from_history(self) -> None:
        rows = [
            replace(record(number, speed(1)), stage_seconds=(("start", start), ("measure", 30.0)), restarted=start > 5)
            for number, start in enumerate((150.0, 60.0, 62.0, 140.0, 1.5))
        ]
        costs = CostModel.learnt(rows, CostModel())
        assert (costs.start, costs.compile, costs.live, costs.measure) == (61.0, 84.0, 1.5, 30.0)
        assert CostModel.learnt([], CostModel(start=9)) == CostModel(start=9)

    def test_live_settings_only_go_down(self) -> None:
        engine = RunningEngine(EngineConfig.of({"seqs": 128, "block": 16}))
        reaches = lambda **args: engine.reaches(EngineConfig.of(args), ("seqs",))  # noqa: E731
        assert reaches(seqs=64, block=16) and reaches(seqs=128, block=16)
        assert not reaches(seqs=256, block=16) and not reaches(seqs=64, block=32) and not reaches(block=16)

    def test_a_failure_takes_the_engine_away(self) -> None:
        rows = [record(0, speed(1)), replace(record(1, speed(1)), restarted=False)]
        assert running_engine(rows) == RunningEngine(rows[0].config)
        assert running_engine([*rows, record(2, Infeasible("refused", "x", started=False))]) is not None
        assert running_engine([*rows, record(2, Infeasible("oom_serving", "x"))]) is None

    def test_efficiency_counts_points_per_gpu_hour(self) -> None:
        rows = [
            replace(record(number, speed(1), seconds=900), stage_seconds=(("warmup", 100.0), ("measure", 350.0)))
            for number in range(4)
        ]
        found = efficiency([replace(rows[0], restarted=True), *(replace(one, restarted=False) for one in rows[1:])])
        assert found.gpu_hours == 2.0 and found.points_per_gpu_hour == 2.0 and found.measuring_share == 0.5
        assert (found.restarts, found.live_changes) == (1, 3)


@pytest.mark.parametrize(
    ("name", "value", "limit", "within"),
    [
        ("max_num_seqs", 8, 64, True), ("max_num_seqs", 64, 64, True), ("max_num_seqs", 65, 64, False),
        ("long_prefill_token_threshold", 512, 0, True), ("long_prefill_token_threshold", 0, 512, False),
        ("long_prefill_token_threshold", 0, 0, True), ("async_scheduling", False, True, False),
    ],
)  # fmt: skip
def test_a_limit_is_never_raised_above_what_the_engine_started_with(
    name: str, value: FrozenValue, limit: FrozenValue, within: bool
) -> None:
    """A threshold of 0 is no threshold: the highest there is."""
    assert lowers(name, value, limit) is within


def test_limits_that_a_start_left_open_are_those_that_the_engine_chose() -> None:
    resolved = Resolved(values=(("seqs", 128),))
    rows = [replace(record_of(0, Proposal(EngineConfig.of({"block": 16}), origin="baseline"), speed(1)),
                    restarted=True, resolved=resolved)]  # fmt: skip
    engine = running_engine(rows)
    assert engine is not None
    assert engine.reaches(EngineConfig.of({"block": 16, "seqs": 128}), ["seqs"])
    assert engine.reaches(EngineConfig.of({"block": 16}), ["seqs"])
    assert not engine.reaches(EngineConfig.of({"block": 16, "seqs": 129}), ["seqs"])
    assert not engine.reaches(EngineConfig.of({"block": 16, "batched": 1}), ["seqs", "batched"]), "not known"
    given = replace(rows[0], proposal=Proposal(EngineConfig.of({"block": 16, "seqs": 64})))
    assert not RunningEngine(given.config).reaches(EngineConfig.of({"block": 16}), ["seqs"]), "64 is not the default"


def test_an_engine_that_was_started_with_room_reaches_what_its_configuration_did_not_ask_for() -> None:
    tokens = lambda count: EngineConfig.of({"max_num_batched_tokens": count})  # noqa: E731
    engine = RunningEngine(tokens(512), (("max_num_batched_tokens", 8192),))
    assert engine.reaches(tokens(4096), ["max_num_batched_tokens"])
    assert not engine.reaches(tokens(16384), ["max_num_batched_tokens"])
    assert not engine.reaches(tokens(4096), []), "only where the engine can be changed live"


class TestReuse:
    conditions = (("card", "h100"), ("vllm", "0.32.0"))

    def old(self) -> list[TrialRecord]:
        rows = []
        for one in study(12):
            outcome = one.outcome
            if not isinstance(outcome, Infeasible):
                level = replace(outcome.load.levels[0], plan_hash="p1")  # type: ignore[union-attr]
                outcome = replace(outcome, load=replace(outcome.load, levels=(level,)))  # type: ignore[union-attr]
            rows.append(replace(one, outcome=outcome, environment=self.conditions))
        return rows

    def call(self, differs: str = "", **more) -> Reuse:  # type: ignore[no-untyped-def]
        return reuse(
            self.old(), objectives=more.get("objectives", OBJECTIVES), space=toy_space(), base=EngineConfig(),
            differs=lambda _: differs, source="last week", anew=more.get("anew", ()),
        )  # fmt: skip

    def test_the_same_conditions_are_taken_over(self) -> None:
        found = self.call(anew=(BASELINE.hash,))
        assert len(found.taken) == 11 and found.warm == ()
        assert {one.proposal.origin for one in found.taken} == {"warm"}
        assert BASELINE.hash not in {one.config.hash for one in found.taken}, "the baseline is measured anew"
        proposer = create_proposer("auto", toy_space(), OBJECTIVES, EngineConfig(), 2, (), lambda _: None, BASELINE)
        following = proposer.propose(list(found.taken))
        assert following is not None and following.config.hash == BASELINE.hash
        rows = [replace(one, number=number) for number, one in enumerate(found.taken)]
        then = proposer.propose([*rows, replace(self.old()[0], number=99)])
        assert then is not None and then.config.hash not in {one.config.hash for one in found.taken}

    def test_other_conditions_only_warm_and_say_why(self) -> None:
        found = self.call("driver: 580 before, 590 now")
        assert found.taken == ()
        assert 1 <= len(found.warm) <= 8 and found.warm[0].source == "last week"
        assert "12 not taken over: driver: 580 before, 590 now" in found.sentence

    def test_what_a_new_objective_needs_must_have_been_measured(self) -> None:
        wanted = replace(OBJECTIVES, slos=(Slo("tpot_p99_ms", 40.0),))
        found = self.call(objectives=wanted)
        assert not any(one.outcome.kind == "measured" for one in found.taken)
        assert "an objective or a limit was not measured" in found.sentence

    def test_what_is_taken_over_uses_up_no_budget(self) -> None:
        taken = [replace(one, number=number) for number, one in enumerate(self.call().taken)]
        assert StopRule(trials=1, gpu_hours=0.01).check(taken, OBJECTIVES, elapsed=0.0) is None
        assert efficiency(taken).gpu_hours == 0 and efficiency(taken).live_changes == 0
        assert running_engine(taken) is None

    def test_patience_counts_from_what_was_known(self) -> None:
        """Trials that add nothing to the front of the earlier study are trials without a gain."""
        taken = [replace(one, number=number) for number, one in enumerate(self.call().taken)]
        worst = max((one for one in self.old() if OBJECTIVES.feasible(one)), key=OBJECTIVES.rank)
        own = [replace(worst, number=20 + number) for number in range(3)]
        assert trials_without_gain([*taken, *own], OBJECTIVES) == 3
        assert trials_without_gain(own, OBJECTIVES) == 2


class TestView:
    def test_it_can_be_rebuilt_and_synced_any_number_of_times(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path / 'study.db'}"
        rows = study(10, "local")
        view = OptunaView(url, "toy", toy_space(), OBJECTIVES)
        assert view.sync(rows[:6]) == 6
        assert view.sync(rows) == 4 and view.sync(rows) == 0
        again = OptunaView(url, "toy", toy_space(), OBJECTIVES)
        assert again.sync(rows) == 0
        before = trials(url, view.name)
        assert again.rebuild(rows) == 10
        after = trials(url, view.name)
        assert [one.values for one in before] == [one.values for one in after]
        assert [one.params for one in before] == [one.params for one in after]
        assert all(len(one.constraints) == 2 for one in after)
        baseline = after[0]
        assert baseline.user_attrs["origin"] == "baseline" and "seqs=64" in baseline.user_attrs["configuration"]

    def test_what_a_killed_process_left_running_is_failed(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path / 'study.db'}"
        rows = study(3)
        view = OptunaView(url, "toy", toy_space(), OBJECTIVES)
        view.sync(rows[:2])
        view.begin(2, rows[2].proposal)
        assert trials(url, view.name)[-1].state.name == "RUNNING"
        second = OptunaView(url, "toy", toy_space(), OBJECTIVES)
        assert [one.state.name for one in trials(url, view.name)][-1] == "FAIL"
        assert second.sync(rows) == 1

    def test_a_running_trial_is_finished_in_place(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path / 'study.db'}"
        rows = study(3)
        view = OptunaView(url, "toy", toy_space(), OBJECTIVES)
        for one in rows:
            view.begin(one.number, one.proposal)
            view.sync(rows[: one.number + 1])
        found = trials(url, view.name)
        assert len(found) == 3 and all(one.state.is_finished() for one in found)

    def test_another_space_is_another_study(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path / 'study.db'}"
        space = toy_space()
        wider = replace(space, parameters=(*space.parameters, Parameter("block", "ladder", (16, 32), ordered=True)))
        first = OptunaView(url, "toy", space, OBJECTIVES)
        second = OptunaView(url, "toy", wider, OBJECTIVES)
        assert first.name != second.name and first.name.startswith("toy-")

    def test_faults_and_crashes_are_told_apart(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path / 'study.db'}"
        rows = [
            record(0, speed(10)),
            record(1, Infeasible("oom_start", "too large", 2.0)),
            record(2, Broken("hang", "x")),
        ]
        view = OptunaView(url, "toy", toy_space(), OBJECTIVES)
        view.sync(rows)
        found = trials(url, view.name)
        assert [one.state.name for one in found] == ["COMPLETE", "COMPLETE", "FAIL"]
        assert found[1].values == found[0].values and found[1].constraints["feasible"] == 2.0
        assert found[1].user_attrs["reason"] == "oom_start: too large"


def trials(url: str, name: str) -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(study_name=name, storage=url).get_trials()
