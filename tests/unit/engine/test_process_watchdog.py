"""A hang is requests that run and no token that comes."""

from __future__ import annotations

import pytest

from autotune.engine.prometheus import parse_metrics
from autotune.engine.watchdog import GENERATED, RUNNING, ClientSide, Watchdog


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def sample(running: float, tokens: float) -> dict[str, float]:
    return {RUNNING: running, GENERATED: tokens}


def test_tokens_are_progress(clock: Clock) -> None:
    dog = Watchdog(10, clock)
    for tokens in range(5):
        assert dog.observe(sample(4, tokens)) is None
        clock.now += 9


def test_no_token_for_so_long_is_a_hang(clock: Clock) -> None:
    dog = Watchdog(10, clock)
    assert dog.observe(sample(4, 7)) is None
    clock.now += 9.9
    assert dog.observe(sample(4, 7)) is None
    clock.now += 0.2
    failure = dog.observe(sample(4, 7))
    assert failure is not None
    assert failure.signature_id == "own_hang"
    assert "4 requests" in failure.reason


def test_idle_is_no_hang(clock: Clock) -> None:
    dog = Watchdog(10, clock)
    for _ in range(5):
        assert dog.observe(sample(0, 7)) is None
        clock.now += 60
    assert dog.observe(sample(1, 7)) is None


def test_silent_metrics_with_work_are_a_hang(clock: Clock) -> None:
    dog = Watchdog(10, clock)
    dog.observe(sample(2, 7))
    clock.now += 11
    assert dog.observe({}) is not None


def test_an_engine_that_hangs_in_its_first_step_says_that_nothing_runs(clock: Clock) -> None:
    """Met on the real vLLM: its figures are only written after a step, so it told of an idle server for ever."""
    dog = Watchdog(10, clock)
    waiting = ClientSide(inflight=2, marks=(0, "warmup", 0, 0))
    assert dog.observe(sample(0, 5), ClientSide()) is None
    assert dog.observe(sample(0, 5), waiting) is None
    clock.now += 10.1
    failure = dog.observe(sample(0, 5), waiting)
    assert failure is not None and "2 requests" in failure.reason


def test_tokens_that_reach_the_client_are_progress_whatever_the_server_says(clock: Clock) -> None:
    dog = Watchdog(10, clock)
    for chunks in range(5):
        assert dog.observe({}, ClientSide(1, (0, "window", 0, chunks))) is None
        clock.now += 9
    clock.now += 2
    assert dog.observe({}, ClientSide(1, (0, "window", 0, 4))) is not None


def test_metrics_of_a_dying_server() -> None:
    text = (
        "# HELP x y\n# TYPE x gauge\n"
        'x{engine="0",model="a b{}"} 1.5\nx{engine="1"} 2\n'
        'h_bucket{le="1"} 3\nh_sum 4\ngarbage here now\n\x00\xff\nnan_one NaN\nbig 1e3 1700000000\nhalf_line 12'
    )
    assert parse_metrics(text) == {"x": 3.5, "h_sum": 4.0, "big": 1000.0}
    assert parse_metrics("") == {}
