"""Knee, ramp and bisection on a server whose saturation is known."""

from __future__ import annotations

import pytest

from autotune.errors import SpecError
from autotune.load.knee import Knee, Ramp, climb, find_capacity, flat_tail, load_at_knee, locate_knee
from autotune.load.placement import place_on
from autotune.load.report import Estimate, Level, LevelReport
from autotune.spec.study import LoadSpec, SloSpec

SLO = SloSpec(metric="ttft", percentile=95, limit="500ms")


def exact(value: float) -> Estimate:
    return Estimate(value, value, value, 100)


class Saturating:
    """Little's law: throughput grows with concurrency up to 64, from there the wait does."""

    def __init__(self, decline: float = 0.0) -> None:
        self.asked: list[float] = []
        self.decline = decline

    async def __call__(self, level: Level) -> LevelReport:
        self.asked.append(level.value)
        over = max(0.0, level.value - 64)
        rate = 10 * min(level.value, 64) - self.decline * over
        wait = 100 + 10 * over
        return LevelReport(level, (("output_throughput", exact(rate)), ("ttft_p95_ms", exact(wait))))


@pytest.mark.parametrize("decline", [0.0, 1.0])
async def test_the_ramp_finds_the_knee_and_stops_behind_it(decline):
    server = Saturating(decline)
    reports = await climb(server, Ramp(8, 512, 2.0), "closed")
    assert server.asked == [8, 16, 32, 64, 128, 256]
    assert locate_knee(reports) == Knee(Level("closed", 64.0), saturated=True)


async def test_a_ramp_below_saturation_says_so():
    reports = await climb(Saturating(), Ramp(4, 32, 2.0), "closed")
    knee = locate_knee(reports)
    assert knee is not None and not knee.saturated
    assert knee.level.value == 32


async def test_two_levels_have_no_knee():
    assert locate_knee(await climb(Saturating(), Ramp(4, 8, 2.0), "closed")) is None


def test_flat_tail():
    assert not flat_tail([1, 2])
    assert not flat_tail([1, 2, 4, 4.05, 5])
    assert flat_tail([1, 2, 4, 4.05, 4.0])


@pytest.mark.parametrize("kind", ["closed", "open"])
async def test_bisection_finds_the_highest_level_that_holds(kind):
    """500 ms are reached at 64 + 40 = 104."""
    server = Saturating()
    found, reports = await find_capacity(server, [SLO], Level(kind, 8), Level(kind, 512))
    assert found is not None
    assert 104 / 1.05 <= found.value <= 104
    assert len(reports) == len(server.asked) <= 10


async def test_bisection_at_its_ends():
    none, reports = await find_capacity(Saturating(), [SLO], Level("closed", 128), Level("closed", 512))
    assert none is None and len(reports) == 1
    top, _ = await find_capacity(Saturating(), [SLO], Level("closed", 8), Level("closed", 64))
    assert top == Level("closed", 64)


async def test_an_invalid_or_stopped_level_holds_nothing():
    async def stopped(level: Level) -> LevelReport:
        return LevelReport(level, (("ttft_p95_ms", exact(1)),), stopped="hopeless" if level.value > 10 else None)

    found, _ = await find_capacity(stopped, [SLO], Level("closed", 1), Level("closed", 100))
    assert found == Level("closed", 10)


def test_ramps_are_read():
    assert Ramp.parse("16:512:1.5") == Ramp(16, 512, 1.5)
    assert [level.value for level in Ramp(1, 4, 1.5).levels("closed")] == [1, 2, 3, 4]
    assert [level.value for level in Ramp(0.5, 2, 2).levels("open")] == [0.5, 1, 2]


@pytest.mark.parametrize("text", ["", "16", "16:8", "16:32:1", "0:8:2", "a:b:c", "1:2:3:4", "1..2:3"])
def test_bad_ramps_say_what_is_legal(text):
    with pytest.raises(SpecError, match="is no ramp"):
        Ramp.parse(text)


def test_a_load_relative_to_the_knee():
    load = LoadSpec(knee=0.9)
    assert load_at_knee(load, Level("closed", 64)).levels == [58.0]
    assert load_at_knee(load, Level("open", 3.0)).levels == pytest.approx([2.7])
    assert load_at_knee(LoadSpec(levels=[5.0]), Level("closed", 64)).levels == [5.0]


def test_a_placed_load_can_be_stored_and_read_back():
    """It is kept in the study's database for all later trials."""
    placed = load_at_knee(LoadSpec(knee=0.9), Level("closed", 64))
    assert LoadSpec.model_validate_json(placed.model_dump_json()) == placed


@pytest.mark.parametrize(
    ("last", "level", "told"),
    [
        (512, 32, "the load stands at c=32; the baseline's knee is at c=64"),
        (
            32,
            16,
            "the load stands at c=16; the baseline's knee is at c=32, and may lie higher: it was not saturated there",
        ),
        (8, 4, "no knee in 2 levels; the load stands at c=4"),
    ],
)
async def test_a_load_is_placed_on_the_curve_and_told(last, level, told):
    placed = place_on(LoadSpec(knee=0.5), await climb(Saturating(), Ramp(4, last, 2.0), "closed"))
    assert placed.load.levels == [level]
    assert str(placed) == told
    assert placed.answered


def test_a_baseline_that_answers_nothing_tells_nothing_about_its_knee():
    """It is not kept: the next start of the baseline is climbed again."""
    assert not place_on(LoadSpec(knee=0.5), [LevelReport(Level("closed", 4.0), (), errors=30)]).answered
