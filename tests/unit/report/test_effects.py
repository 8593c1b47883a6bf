"""Importance and effects are those that the figures were made with."""

from __future__ import annotations

import random

import pytest

from autotune.outcome import Proposal, TrialRecord
from autotune.report.effects import FEWEST, effects_of
from autotune.report.values import SettingView
from autotune.search.objectives import Objective, Objectives
from autotune.space.config import EngineConfig
from autotune.testing.toy import measured, record_of

OBJECTIVES = Objectives(
    (Objective("output_throughput", True, "last"), Objective("ttft_p95_ms", False, "last")), levels=(64.0,)
)


def made(count: int, *, noise: float = 0.0, tied: bool = False) -> list[TrialRecord]:
    """Throughput: fp8 x1.5, 256 sequences x1.2. TTFT: only the batch matters. `seed_of_nothing` does nothing."""
    rng = random.Random(3)
    records = []
    for number in range(count):
        weights = rng.choice(("none", "fp8"))
        args = {
            "weights": weights,
            "seqs": (256 if weights == "fp8" else 64) if tied and rng.random() < 0.8 else rng.choice((64, 256)),
            "batch": rng.choice((1024, 8192)),
            "seed_of_nothing": rng.choice((1, 2)),
            "same_everywhere": 7,
            "own_value": number,
        }
        throughput = 1000 * (1.5 if weights == "fp8" else 1) * (1.2 if args["seqs"] == 256 else 1)
        figures = {
            "output_throughput": throughput * rng.lognormvariate(0, noise),
            "ttft_p95_ms": (400 if args["batch"] == 8192 else 200) * rng.lognormvariate(0, noise),
        }
        records.append(record_of(number, Proposal(EngineConfig.of(args)), measured(figures)))
    return records


def ratio(setting: SettingView, objective: int, value: str, other: str) -> float:
    found = {effect.value: effect.ratio for effect in setting.effects[objective]}
    return found[value] / found[other]


def test_effects_are_recovered() -> None:
    found = {one.name: one for one in effects_of(made(80, noise=0.01), OBJECTIVES).settings}
    assert ratio(found["weights"], 0, "fp8", "none") == pytest.approx(1.5, rel=0.05)
    assert ratio(found["seqs"], 0, "256", "64") == pytest.approx(1.2, rel=0.05)
    assert ratio(found["batch"], 1, "1024", "8192") == pytest.approx(2.0, rel=0.08), "less latency is better"


def test_confounded_settings_are_taken_apart() -> None:
    found = {one.name: one for one in effects_of(made(120, noise=0.01, tied=True), OBJECTIVES).settings}
    assert ratio(found["weights"], 0, "fp8", "none") == pytest.approx(1.5, rel=0.08)
    assert ratio(found["seqs"], 0, "256", "64") == pytest.approx(1.2, rel=0.08)


def test_importance_orders_settings_and_leaves_out_what_was_not_varied() -> None:
    effects = effects_of(made(80, noise=0.01), OBJECTIVES)
    assert [one.name for one in effects.settings][:2] == ["weights", "seqs"]
    assert {one.name for one in effects.settings} == {"weights", "seqs", "batch", "seed_of_nothing"}
    idle = next(one for one in effects.settings if one.name == "seed_of_nothing")
    assert max(idle.importance) < 0.01
    assert all(low > 0.95 for low in effects.fits)


def test_intervals_of_a_setting_that_does_nothing_hold_one() -> None:
    idle = next(one for one in effects_of(made(80, noise=0.1), OBJECTIVES).settings if one.name == "seed_of_nothing")
    assert all(effect.low < 1 < effect.high for row in idle.effects for effect in row)


def test_too_few_trials_say_nothing() -> None:
    assert effects_of(made(FEWEST - 1), OBJECTIVES).settings == ()
    assert effects_of([], OBJECTIVES).settings == ()


def test_figures_without_any_spread_do_not_divide_by_zero() -> None:
    figures = measured({"output_throughput": 5.0, "ttft_p95_ms": 5.0})
    configs = [EngineConfig.of({"a": number % 2, "b": number}) for number in range(8)]
    same = [record_of(number, Proposal(config), figures) for number, config in enumerate(configs)]
    effects = effects_of(same, OBJECTIVES)
    assert all(one.importance == (0.0, 0.0) for one in effects.settings)
    assert effects.fits == (0.0, 0.0)
