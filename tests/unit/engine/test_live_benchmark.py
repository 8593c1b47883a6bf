"""The arithmetic of the comparison of live values with restarts."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.live.live import FIGURES, Row, live_value, ratios, turn


def row(arm: str, number: int, value: float) -> Row:
    return Row(arm, number, dict.fromkeys(FIGURES, (value, value * 0.999, value * 1.001)), 0.0)


def test_a_drift_that_hits_both_alike_cancels() -> None:
    drift = [1.0, 1.3, 0.8, 1.1, 0.6]
    rows = [row(arm, number, size * factor) for number, factor in enumerate(drift)
            for arm, size in (("live", 97.0), ("restart", 100.0))]  # fmt: skip
    for ratio in ratios(rows, "live", "restart"):
        assert ratio.value == pytest.approx(0.97)
        assert 0.96 < ratio.low < 0.97 < ratio.high < 0.98
        assert ratio.rounds == len(drift)


def test_the_interval_grows_with_the_scatter_of_the_rounds() -> None:
    rows = [row("restart", number, 100.0) for number in range(4)]
    rows += [row("live", number, value) for number, value in enumerate((90.0, 110.0, 95.0, 105.0))]
    assert all(one.low < 0.9 and one.high > 1.1 for one in ratios(rows, "live", "restart"))


def test_a_round_that_lacks_an_arm_does_not_count() -> None:
    rows = [row("live", number, 50.0) for number in range(3)] + [row("restart", number, 50.0) for number in (0, 2)]
    assert {one.rounds for one in ratios(rows, "live", "restart")} == {2}


@pytest.mark.parametrize("count", [3, 4, 6])
def test_every_arm_is_early_as_often_as_late(count: int) -> None:
    arms = [str(number) for number in range(count)]
    orders = [turn(arms, number) for number in range(2 * count)]
    assert all(sorted(order) == arms for order in orders)
    places = {arm: sum(order.index(arm) for order in orders) for arm in arms}
    assert len(set(places.values())) == 1, places


def test_a_value_is_a_live_setting_and_a_number() -> None:
    assert live_value("max_num_seqs=4") == ("max_num_seqs", 4)
    for wrong in ("block_size=16", "max_num_seqs=many", "max_num_seqs"):
        with pytest.raises(argparse.ArgumentTypeError, match="max_num_seqs"):
            live_value(wrong)
