"""Another load than the stated one is invalid; a slow, queueing or preempting engine is not."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from autotune.load.agreement import check_profile, host_bound, in_flight
from autotune.load.enginewatch import EngineWatch, Reading
from autotune.load.measure import measure
from autotune.load.metrics import Window
from autotune.load.records import Records
from autotune.load.report import Level
from autotune.load.wire import RECORD_FIELDS
from autotune.spec.expect import ExpectSpec
from autotune.spec.study import LoadSpec, WarmupSpec, WindowSpec

WINDOW = Window(4.0, 24.0)
CLOSED, OPEN = Level("closed", 32), Level("open", 20.0)
RUNNING, WAITING, PREEMPTED = "num_requests_running", "num_requests_waiting", "num_preemptions_total"


def records_of(sent: np.ndarray, seconds: np.ndarray, *, due: np.ndarray | None = None, chunks: int = 10) -> Records:
    """Requests that take so long each; their chunks come evenly."""
    rows = np.full((len(sent), len(RECORD_FIELDS)), np.nan)
    column = {name: rows[:, number] for number, name in enumerate(RECORD_FIELDS)}
    column["sent"][:], column["end"][:], column["last"][:] = sent, sent + seconds, sent + seconds
    column["first"][:] = sent + seconds / chunks
    if due is not None:
        column["due"][:] = due
    column["status"][:] = 0
    times = (sent[:, None] + seconds[:, None] * np.arange(1, chunks + 1) / chunks).ravel()
    offsets = np.arange(len(sent) + 1) * chunks
    return Records(rows, times, offsets, np.full(100, 0.0005), {}, {}, 0.1, 30.0)


def closed(streams: int = 32, seconds: float = 1.0, pause: float = 0.0) -> Records:
    """Every stream sends again as soon as (or a pause after) its request has ended, out of step with the others."""
    rounds = np.arange(int(30 / (seconds + pause)))
    sent = (np.arange(streams)[:, None] / streams * seconds + rounds[None, :] * (seconds + pause)).ravel()
    return records_of(sent, np.full(len(sent), seconds))


def open_loop(seconds_of, rate: float = 20.0) -> Records:
    due = np.arange(0, 28, 1 / rate)
    return records_of(due, np.array([seconds_of(at) for at in due]), due=due)


def watch(**series: list[float]) -> EngineWatch:
    """One reading a second from the window's begin; a series shorter than the window repeats its last value."""
    found = EngineWatch(None)
    for number in range(21):
        values = {name: items[min(number, len(items) - 1)] for name, items in series.items()}
        found.readings.append(Reading(4.0 + number, 4.002 + number, values))
    return found


def findings(records: Records, seen: EngineWatch, load: LoadSpec | None = None, level: Level = CLOSED, **more):
    return check_profile(records, WINDOW, seen, load or LoadSpec(), level, start=0.0, scale=1.0, **more)


def one(reasons: tuple[str, ...]) -> str:
    assert len(reasons) == 1, reasons
    return reasons[0]


def test_the_clients_own_count_at_any_time():
    assert in_flight(closed(4), np.array([-1.0, 0.6, 10.0])).tolist() == [0.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("running", "waiting"),
    [(32, 0), (8, 24), (1, 31), (30, 0)],
    ids=["all run", "saturated", "one at a time", "between two steps"],
)
def test_an_ordinary_engine_is_valid_however_much_it_queues(running, waiting):
    found = findings(closed(), watch(**{RUNNING: [running], WAITING: [waiting], PREEMPTED: [7.0]}))
    assert found.invalid == ()
    assert found.notes == ()


def test_steady_preemptions_are_the_engines_result_and_a_note():
    found = findings(closed(), watch(**{RUNNING: [32], PREEMPTED: [5.0 * k for k in range(21)]}))
    assert found.invalid == ()
    assert "preemptions in 640 requests: the KV cache is too small" in one(found.notes)


def test_gpus_that_wait_for_their_host_are_a_note():
    assert host_bound(CLOSED, {"gpu_utilisation_mean": 88.5}) == (
        "the GPUs were busy for 88% of the window: they waited for their host"
    )
    assert host_bound(CLOSED, {"gpu_utilisation_mean": 97.0}) is None
    assert host_bound(OPEN, {"gpu_utilisation_mean": 40.0}) is None  # nothing to do is no fault of the host
    assert host_bound(CLOSED, {"gpu_utilisation_mean": 0.0}) is None  # a driver that does not tell
    assert host_bound(CLOSED, {}) is None


def test_other_peoples_requests_are_invalid():
    assert findings(closed(), watch(**{RUNNING: [34], WAITING: [1]})).invalid == ()
    found = findings(closed(), watch(**{RUNNING: [40], WAITING: [9]}))
    assert "the server runs 49 requests, this client sent 32" in one(found.invalid)
    shared = findings(open_loop(lambda _: 0.5), watch(**{RUNNING: [16]}), LoadSpec(arrivals="poisson"), OPEN)
    assert "someone else uses the server" in one(shared.invalid)


def test_requests_held_up_before_the_engine_are_a_note():
    found = findings(closed(), watch(**{RUNNING: [10], WAITING: [0]}))
    assert found.invalid == ()
    assert "the engine holds 10 of 32 requests in flight" in one(found.notes)


def test_a_server_without_gauges_says_nothing():
    assert findings(closed(), watch(up=[1.0])) == findings(closed(), EngineWatch(None))
    assert findings(closed(), watch(up=[1.0])).invalid == ()


def test_a_concurrency_that_was_not_kept_is_another_load():
    seen = watch(**{RUNNING: [24]})
    thin = closed(32, 0.3, pause=0.1)
    assert "it kept 24.1 of 32 requests in flight" in one(findings(thin, seen).invalid)
    assert findings(closed(32, 0.3, pause=0.01), seen).invalid == ()
    # A trace or a limit that came to its end falls off by itself; failed requests rest before the next try.
    assert findings(thin, seen, finite=True).invalid == ()
    thin.rows[500, RECORD_FIELDS.index("status")] = 1.0
    assert findings(thin, seen).invalid == ()


def test_a_counter_that_falls_is_a_restart():
    found = findings(closed(), watch(generation_tokens_total=[100.0] * 10 + [3.0]))
    assert "generation_tokens_total fell in the window" in one(found.invalid)


def test_a_kv_cache_that_fills_up_in_the_window_is_not_steady():
    late = watch(**{RUNNING: [32], PREEMPTED: [0.0] * 11 + [10.0 * k for k in range(1, 11)]})
    slower = closed()
    second = slower.chunks > 14.0
    keep = ~second | (np.arange(len(slower.chunks)) % 5 > 0)
    thinned = Records(slower.rows, slower.chunks[keep], slower.offsets, slower.lags, {}, {}, 0.1, 30.0)
    found = findings(thinned, late)
    assert "the KV cache filled up during the window: 90 of 90 preemptions" in one(found.invalid)
    # The same preemptions without a loss, or the same loss with preemptions all along, are the engine's result.
    assert findings(slower, late).invalid == ()
    assert findings(thinned, watch(**{RUNNING: [32], PREEMPTED: [5.0 * k for k in range(21)]})).invalid == ()


def test_an_overloaded_rate_is_slow_and_valid():
    load = LoadSpec(arrivals="poisson", levels=[20.0])
    grows = findings(open_loop(lambda at: 0.5 + 0.3 * at), EngineWatch(None), load, OPEN)
    assert grows.invalid == ()
    assert "overloaded: " in one(grows.notes) and "lower bounds" in one(grows.notes)
    assert findings(open_loop(lambda _: 5.0), EngineWatch(None), load, OPEN).notes == ()


def test_a_busy_and_stable_queue_is_not_called_overloaded():
    """A queue with Poisson arrivals at 90 % of its rate: its length swings widely, and no seed of 40 gives an alarm."""
    load, alarms = LoadSpec(arrivals="poisson", levels=[20.0]), 0
    for seed in range(40):
        random = np.random.default_rng(seed)
        due = np.cumsum(random.exponential(1 / 20.0, 560))
        free, took = 0.0, []
        for at in due:
            free = max(free, at) + 0.9 / 20.0
            took.append(free - at)
        alarms += bool(findings(records_of(due, np.array(took), due=due), EngineWatch(None), load, OPEN).notes)
    assert alarms == 0


@pytest.mark.parametrize(
    ("expect", "series", "reason"),
    [
        ({"preemptions": 0}, {PREEMPTED: [0.0, 0.0, 1.0]}, "load.expect allows 0"),
        ({"preemptions": 0.1}, {PREEMPTED: [0.0, 20.0]}, None),
        ({"preemptions": 0}, {}, "cannot be checked"),
        ({"queue": 0.1}, {RUNNING: [24.0], WAITING: [8.0]}, "25% of the requests wait in the engine"),
        ({"queue": 0.3}, {RUNNING: [24.0], WAITING: [8.0]}, None),
        ({"queue": 0.3}, {RUNNING: [24.0]}, "cannot be checked"),
    ],
)
def test_what_the_profile_states_must_hold(expect, series, reason):
    load = LoadSpec(expect=ExpectSpec(**expect))
    invalid = findings(closed(), watch(**series), load).invalid
    assert (reason in one(invalid)) if reason else invalid == ()


def test_an_empty_expectation_is_refused():
    with pytest.raises(ValidationError, match="expects nothing"):
        LoadSpec.model_validate({"expect": {}})


async def test_someone_else_on_the_server_is_found_by_its_gauges(start_server, client, tmp_path):
    server = await start_server(ttft=0.02, step=0.01)
    server.foreign = 20
    load = LoadSpec(
        input_tokens=16, output_tokens=8, levels=[4], warmup=WarmupSpec(requests=4), window=WindowSpec(duration=1.5)
    )
    report = await measure(
        server.target, load, trial_seed=1, folder=tmp_path, client=client, metrics=server.metrics_source()
    )
    assert "someone else uses the server" in one(report.levels[0].invalid)
