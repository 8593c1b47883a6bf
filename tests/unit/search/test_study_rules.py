"""Stop rule, drift, costs, reuse and the view for the dashboard."""

from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from autotune.outcome import Broken, Infeasible, Outcome, Proposal, TrialRecord
from autotune.search.drift import drift_of, next_sentinel
from autotune.search.proposer import create_proposer
from autotune.search.restart import CostModel, RunningEngine, efficiency, running_engine
from autotune.search.reuse import reuse
from autotune.search.stop import StopRule, trials_without_gain
from autotune.search.view import OptunaView
from autotune.space.config import EngineConfig
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
        assert self.check(trials=5) is None
        assert self.check(elapsed=7300, wall_clock=7200) == "the wall clock of 2 h is used up"
        assert self.check(gpu_hours=0.3) == "0.39 of 0.3 GPU hours are used"
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

    def call(self, environment: dict[str, str], load: str):  # type: ignore[no-untyped-def]
        return reuse(
            self.old(), objectives=OBJECTIVES, space=toy_space(), base=EngineConfig(), environment=environment,
            load=load, source="last week",
        )  # fmt: skip

    def test_the_same_conditions_are_taken_over(self) -> None:
        found = self.call(dict(self.conditions), "p1")
        assert len(found.taken) == 12 and found.warm == ()
        assert {one.proposal.origin for one in found.taken} == {"baseline", "warm"}
        proposer = create_proposer("auto", toy_space(), OBJECTIVES, EngineConfig(), 2, (), lambda _: None, BASELINE)
        following = proposer.propose(list(found.taken))
        assert following is not None and following.config.hash not in {one.config.hash for one in found.taken}

    def test_another_load_or_driver_only_warms(self) -> None:
        for environment, load in (({"card": "h100", "vllm": "0.33.0"}, "p1"), (dict(self.conditions), "")):
            found = self.call(environment, load)
            assert not any(one.outcome.kind == "measured" for one in found.taken)
            assert 1 <= len(found.warm) <= 8 and found.warm[0].source == "last week"


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
