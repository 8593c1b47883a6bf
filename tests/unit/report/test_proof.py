"""Figures of several starts."""

import pytest

from autotune.load.report import Estimate
from autotune.report.proof import over_starts


@pytest.mark.parametrize("value", [12.0, 24.0, 0.1, 6285.3])
def test_equal_starts_have_their_value_within_their_interval(value: float) -> None:
    found = over_starts([Estimate(value, value, value, 3)] * 2)
    assert found == Estimate(value, value, value, 6)
