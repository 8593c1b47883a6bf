"""The mean of a metric over the load."""

from __future__ import annotations

import math

import pytest

from autotune.load.area import area_of, curve_weights
from autotune.load.report import Estimate, Level, LevelReport


def level(value: float, **figures: Estimate) -> LevelReport:
    return LevelReport(Level("open", value), tuple(figures.items()))


def point(value: float, half: float = 0.0) -> Estimate:
    return Estimate(value, value - half, value + half, 10)


def test_a_flat_curve_has_its_height_whatever_the_levels():
    curve = [level(load, goodput=point(7.0)) for load in (1, 3, 50, 64)]
    found = area_of(curve, "goodput")
    assert found is not None
    assert found.value == pytest.approx(7.0)
    assert sum(curve_weights([1, 3, 50, 64])) == pytest.approx(1.0)


def test_a_rate_that_grows_with_the_logarithm_of_the_load_has_its_middle_and_order_does_not_matter():
    curve = [level(load, output_throughput=point(math.log(load))) for load in (100, 1, 10, 3)]
    found = area_of(curve, "output_throughput")
    assert found is not None
    assert found.value == pytest.approx(math.log(100) / 2)


def test_a_saturated_level_does_not_drown_the_other_latencies():
    curve = [level(1, ttft_p95_ms=point(10)), level(2, ttft_p95_ms=point(10)), level(4, ttft_p95_ms=point(100_000))]
    found = area_of(curve, "ttft_p95_ms")
    assert found is not None
    assert found.value == pytest.approx(10 * 10_000 ** (1 / 4))


def test_intervals_of_independent_levels_join():
    both = area_of([level(1, goodput=point(10, 2)), level(2, goodput=point(20, 2))], "goodput")
    assert both is not None
    assert both.high - both.value == pytest.approx(math.hypot(1, 1))
    assert both.n == 20
    late = area_of([level(1, e2e_p50_ms=point(100, 10)), level(2, e2e_p50_ms=point(100, 10))], "e2e_p50_ms")
    assert late is not None
    assert 100 < late.high < 110


def test_no_area_without_two_levels_or_with_a_gap():
    assert area_of([level(4, goodput=point(1))], "goodput") is None
    assert area_of([level(4, goodput=point(1)), level(4, goodput=point(1))], "goodput") is None
    assert area_of([level(4, goodput=point(1)), level(8)], "goodput") is None
