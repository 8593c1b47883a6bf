"""Values, limits and their encoding for samplers."""

import math

import pytest

from autotune.load.report import Estimate, Level, LevelReport, LoadReport
from autotune.outcome import Broken, Infeasible, Measured, Proposal, TrialRecord
from autotune.quality.report import QualityReport, QualityVerdict
from autotune.search.encoding import encode_all
from autotune.search.objectives import Objectives, searched
from autotune.space.config import EngineConfig
from autotune.spec.study import LoadSpec, ObjectiveSpec, SloSpec, StudySpec, TraceSpec
from autotune.testing.toy import OBJECTIVES, measured, record_of


def spec(
    objectives: list[ObjectiveSpec], slos: list[SloSpec] | None = None, levels: list[float] | None = None
) -> StudySpec:
    return StudySpec(
        name="s", model="m", objectives=objectives, slos=slos or [], load=LoadSpec(levels=levels or [16, 64, 256])
    )


def record(
    outcome: Measured | Infeasible | Broken, number: int = 0, origin: str = "sampler", gpus: int = 1, seqs: int = 0
) -> TrialRecord:
    config = EngineConfig.of({"seqs": seqs or number + 1})
    return record_of(number, Proposal(config, (("seqs", number + 1),), origin), outcome, gpus=gpus)


def levels(*rows: tuple[float, float, float], quality: QualityReport | None = None) -> Measured:
    """(level, throughput, p95 TTFT in ms) per level."""
    reports = tuple(
        LevelReport(
            Level("closed", level),
            (
                ("output_throughput", Estimate(speed, speed, speed, 9)),
                ("ttft_p95_ms", Estimate(ttft, ttft, ttft, 9)),
            ),
        )
        for level, speed, ttft in rows
    )
    return Measured(LoadReport(reports), quality)


THREE = levels((16, 100, 50), (64, 300, 120), (256, 280, 900))
THROUGHPUT = ObjectiveSpec(metric="output_throughput")


@pytest.mark.parametrize(("level", "value"), [("first", 100), ("last", 280), ("best", 300), (64, 300), (64.0, 300)])
def test_the_level_decides(level: float | str, value: float) -> None:
    objectives = Objectives.of(spec([ObjectiveSpec(metric="output_throughput", level=level)]))
    assert objectives.values(record(THREE)) == (value,)


def test_best_looks_only_at_levels_that_hold_the_limits() -> None:
    limit = [SloSpec(metric="ttft", limit="100ms")]
    objectives = Objectives.of(spec([ObjectiveSpec(metric="output_throughput", level="best")], limit))
    assert objectives.values(record(THREE)) == (100,)
    assert objectives.feasible(record(THREE))


def test_a_missing_level_is_no_value_and_not_feasible() -> None:
    objectives = Objectives.of(spec([THROUGHPUT]))
    short = record(levels((16, 100, 50)))
    assert objectives.values(short) is None
    assert objectives.constraints(short)[-1] > 0
    assert not objectives.feasible(short)


def test_capacity_is_the_highest_level_within_the_limits() -> None:
    limit = [SloSpec(metric="ttft", limit="150ms")]
    objectives = Objectives.of(spec([ObjectiveSpec(metric="capacity")], limit))
    assert objectives.values(record(THREE)) == (64,)
    assert objectives.values(record(levels((16, 9, 151), (64, 9, 500), (256, 9, 900)))) == (0.0,)
    assert math.isfinite(objectives.model_losses((0.0,))[0])


def test_area_is_the_mean_over_the_load_and_needs_every_level_within_the_limits() -> None:
    area = ObjectiveSpec(metric="output_throughput", level="area")
    objectives = Objectives.of(spec([area]))
    # Equal steps in ln(load), so the outer levels weigh a quarter each.
    assert objectives.values(record(THREE)) == (pytest.approx(100 / 4 + 300 / 2 + 280 / 4),)
    assert objectives.labels == ("output_throughput@area",)
    assert objectives.values(record(levels((16, 100, 50)))) is None
    limited = Objectives.of(spec([area], [SloSpec(metric="ttft", limit="150ms")]))
    assert not limited.feasible(record(THREE))
    assert limited.feasible(record(levels((16, 100, 50), (64, 300, 120), (256, 280, 149))))


def test_per_gpu_divides_by_what_the_trial_took() -> None:
    objectives = Objectives.of(spec([ObjectiveSpec(metric="output_throughput", per_gpu=True)]))
    assert objectives.values(record(THREE, gpus=4)) == (70,)
    assert objectives.labels == ("output_throughput/gpu@last",)


def test_directions_and_percentiles_have_their_defaults() -> None:
    objectives = Objectives.of(spec([THROUGHPUT, ObjectiveSpec(metric="tpot", percentile=90)]))
    assert objectives.directions == ("maximize", "minimize")
    assert [item.key for item in objectives.items] == ["output_throughput", "tpot_p90_ms"]


def test_constraints_have_always_the_same_order_and_number() -> None:
    limits = [SloSpec(metric="ttft", limit="500ms"), SloSpec(metric="ttft", percentile=50, limit="2s")]
    objectives = Objectives.of(spec([THROUGHPUT], limits))
    assert objectives.constraint_names == ("0_slo_ttft_p95_ms", "1_slo_ttft_p50_ms", "quality", "feasible")
    for outcome in (THREE, Infeasible("oom", "x", 3.0), Broken("port_taken", "x"), levels((16, 1, 1))):
        constraints = objectives.constraints(record(outcome))
        assert len(constraints) == 4 and all(math.isfinite(one) for one in constraints)
    over, missing, quality, feasible = objectives.constraints(record(THREE))
    assert over == pytest.approx(math.log(900 / 500))
    assert missing == 1.0  # no p50 was measured, so it cannot be said to hold
    assert quality < 0 and feasible < 0


def test_a_failed_gate_is_a_clear_violation() -> None:
    report = QualityReport(QualityVerdict.FAILED, (), 0.001, "k", 1.0)
    objectives = Objectives.of(spec([THROUGHPUT]))
    failed = record(levels((16, 1, 1), (64, 1, 1), (256, 1, 1), quality=report))
    assert objectives.constraints(failed)[0] >= 0.05
    assert not objectives.feasible(failed)


def test_better_puts_limits_before_speed() -> None:
    objectives = Objectives.of(spec([THROUGHPUT], [SloSpec(metric="ttft", limit="500ms")], [64]))
    slow, fast, late = (record(levels(row)) for row in ((64, 100, 400), (64, 120, 450), (64, 900, 600)))
    assert objectives.better(fast, slow) and objectives.better(slow, late)
    assert objectives.better(late, record(Infeasible("oom", "x")))


def test_repeats_do_not_teach() -> None:
    rows = [record(THREE, 0, "baseline"), record(THREE, 1, "sentinel"), record(THREE, 2, "confirm"), record(THREE, 3)]
    assert [one.number for one in searched(rows)] == [0, 3]


class TestEncoding:
    def test_a_crash_is_complete_with_the_worst_values_so_far_and_a_violated_constraint(self) -> None:
        history = [
            record(measured({"output_throughput": 100, "ttft_p95_ms": 80}), 0),
            record(measured({"output_throughput": 300, "ttft_p95_ms": 200}), 1),
            record(Infeasible("oom_serving", "x", 2.5), 2),
            record(measured({"output_throughput": 50, "ttft_p95_ms": 40}), 3),
            record(Infeasible("oom_serving", "x", 0.0), 4),
        ]
        told = [one for _, one in encode_all(history, OBJECTIVES)]
        assert told[1].values == (300, 200)
        assert told[2].values == (100, 200) and told[2].constraints[-1] == 2.5
        assert told[4].values == (50, 200) and told[4].constraints[-1] > 0

    def test_only_a_fault_of_ours_has_no_values(self) -> None:
        told = encode_all([record(Broken("port_taken", "x"), 0)], OBJECTIVES)[0][1]
        assert told.values is None and not told.learnt

    def test_a_crash_before_anything_was_measured_has_finite_values(self) -> None:
        told = encode_all([record(Infeasible("oom_start", "x"), 0)], OBJECTIVES)[0][1]
        assert told.values is not None and all(math.isfinite(one) for one in told.values)


@pytest.mark.parametrize("level", ["first", "last", "best"])
def test_a_trace_at_its_own_pace_has_a_level_that_the_study_does_not_name(level: str) -> None:
    load = LoadSpec(arrivals="trace", trace=TraceSpec(file="trace.jsonl"))
    objectives = Objectives.of(
        StudySpec(name="s", model="m", load=load, objectives=[ObjectiveSpec(metric="output_throughput", level=level)])
    )
    assert objectives.values(record(measured({"output_throughput": 900.0}, level=2.98))) == (900.0,)
