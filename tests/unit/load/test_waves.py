"""When a closed window begins and ends."""

import numpy as np
import pytest

from autotune.load.waves import WaveWatch, wave_ends

WAVE = 6.0


def marching(streams: int, waves: int, *, spread: float = 0.5) -> np.ndarray:
    """Ends of streams in step: each wave's within `spread` seconds, `WAVE` seconds after those of the one before."""
    return np.concatenate([WAVE * (wave + 1) + np.linspace(0, spread, streams) for wave in range(waves)])


def watched(
    ends: np.ndarray, begin: float, duration: float, *, streams: int, needed: int = 3, grain: float = 0.2
) -> tuple[float, int | None]:
    """The second at which a window from `begin` would be ended, with readings that come late by one grain; and where
    its waves begin."""
    watch = WaveWatch(streams, grain)
    for at in np.arange(0.0, begin + grain / 4, grain / 2):
        watch.note(at, int(np.searchsorted(ends, at - grain)))
    watch.begin(begin, int(np.searchsorted(ends, begin)))
    for at in np.arange(begin + grain / 2, ends[-1] + 1.0, grain / 2):
        watch.note(at, int(np.searchsorted(ends, at - grain)))
        if watch.over(duration, needed):
            return float(at), watch.first
    raise AssertionError("never over")


@pytest.mark.parametrize("begin", [12.51, 12.2, 9.2, 14.9])
def test_a_window_begins_with_the_burst_nearest_to_the_end_of_the_warm_up(begin: float):
    waves = wave_ends(marching(16, 8), begin, 40.0, 16)
    assert waves[0] == 12.0
    assert np.diff(waves) == pytest.approx(WAVE)


def test_a_later_burst_is_taken_where_it_is_nearer():
    assert wave_ends(marching(16, 8), 15.5, 40.0, 16)[0] == 18.0


def test_ends_without_bursts_begin_where_the_window_does():
    ends = np.arange(0.0, 60.0, 0.25)
    waves = wave_ends(ends, 10.1, 50.0, 16)
    assert waves[0] == 10.25
    assert np.diff(waves) == pytest.approx(4.0)


@pytest.mark.parametrize(("duration", "waves"), [(1.0, 3), (18.0, 3), (20.0, 3), (22.0, 4), (30.0, 5)])
def test_the_load_ends_with_the_wave_nearest_to_the_asked_duration(duration: float, waves: int):
    ends = marching(16, 12)
    over, _ = watched(ends, 12.6, duration, streams=16)
    boundary = 12.0 + waves * WAVE
    assert boundary < over < boundary + 0.6  # at once, not a wave later
    assert len(wave_ends(ends, 12.6, over, 16)) - 1 == waves


@pytest.mark.parametrize("begin", np.arange(14.5, 15.6, 0.1).round(1))
def test_no_wave_is_lost_where_two_bursts_are_as_near_to_the_begin(begin: float):
    ends = marching(16, 12, spread=2.5)
    over, first = watched(ends, begin, 6.0, streams=16)
    assert len(wave_ends(ends, begin, over, 16, first=first)) - 1 == 3


@pytest.mark.parametrize("begin", [15.25, 15.75, 16.0, 16.5])
def test_no_wave_is_lost_where_a_pause_is_just_long_enough_for_bursts(begin: float):
    ends = marching(64, 12, spread=4.75)
    over, first = watched(ends, begin, 6.0, streams=64)
    assert len(wave_ends(ends, begin, over, 64, first=first)) - 1 == 3


@pytest.mark.parametrize("begin", [12.0, 12.6, 13.0])
@pytest.mark.parametrize("late", [0.0, 0.2, 0.3])
def test_a_window_without_bursts_holds_the_waves_that_it_was_kept_open_for(begin: float, late: float):
    """Whatever a reading misses, and also where the one that ended the warm-up is of the same moment as the window."""
    ends, grain, streams = np.arange(0.0, 60.0, 0.05), 0.2, 64
    watch = WaveWatch(streams, grain)
    for at in np.arange(0.0, begin + grain / 4, grain / 2):
        watch.note(at, int(np.searchsorted(ends, at - 0.3)))
    watch.begin(begin, int(np.searchsorted(ends, begin)))
    at = begin
    while not watch.over(6.0, 3):
        at += grain / 2
        watch.note(at, int(np.searchsorted(ends, at - late)))
    assert len(wave_ends(ends, begin, at, streams)) - 1 == 3


def test_requests_that_a_percentile_needs_are_waited_for():
    assert watched(marching(16, 12), 12.6, 6.0, streams=16, needed=5)[0] > 12.0 + 5 * WAVE


def test_short_waves_are_given_one_more_because_readings_blur_them():
    ends = marching(16, 200, spread=0.1) / 10.0  # waves of 0.6 s, three readings each
    over, first = watched(ends, 3.0, 3.0, streams=16)
    assert len(wave_ends(ends, 3.0, over, 16, first=first)) - 1 >= 5
    assert over < 3.0 + 3.0 + 3 * 0.6 + 0.4


def test_nothing_is_over_before_anything_ended():
    assert not WaveWatch(4, 0.2).over(1.0, 1)
