"""Every rule that makes a measurement invalid, on made-up records; warm-up and early stop on made-up progress."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.load.early import Progress, breaks_slo
from autotune.load.enginewatch import EngineWatch, Reading, parse_prometheus
from autotune.load.metrics import Window
from autotune.load.records import Records
from autotune.load.report import Level
from autotune.load.steady import Observation, WarmUp
from autotune.load.validity import check_engine, check_window
from autotune.load.wire import RECORD_FIELDS
from autotune.spec.study import LoadSpec, ObjectiveSpec, PrefixSpec, SloSpec, WarmupSpec, WindowSpec

WINDOW = Window(2.0, 22.0)
LOAD = LoadSpec()


def steady(count: int = 1200, tokens: int = 10, *, open_loop: bool = False, late: float = 0.0) -> Records:
    """Requests spread evenly over 24 s, first token after 100 ms, then one every 10 ms."""
    begin = np.linspace(0, 23.5, count)
    rows = np.full((count, len(RECORD_FIELDS)), np.nan)
    column = {name: rows[:, number] for number, name in enumerate(RECORD_FIELDS)}
    column["index"][:] = np.arange(count)
    column["due"][:] = begin if open_loop else np.nan
    column["sent"][:] = begin + late
    column["first"][:] = begin + late + 0.1
    column["last"][:] = column["end"][:] = column["first"] + 0.01 * (tokens - 1)
    column["planned_output"][:] = column["completion_tokens"][:] = column["events"][:] = tokens
    column["prompt_tokens"][:] = 32
    column["status"][:] = 0
    column["attempts"][:] = 1
    chunks = (column["first"][:, None] + 0.01 * np.arange(tokens)).ravel()
    offsets = np.arange(count + 1) * tokens
    return Records(rows, chunks, offsets, np.full(2400, 0.0005), {}, {}, 0.1, 24.0)


def change(records: Records, name: str, value: object, share: float = 1.0) -> Records:
    number = RECORD_FIELDS.index(name)
    records.rows[: round(share * len(records.rows)), number] = value
    return records


def one(reasons: list[str]) -> str:
    assert len(reasons) == 1, reasons
    return reasons[0]


def test_a_clean_window_is_valid():
    slos = [SloSpec(metric="ttft", percentile=95, limit="1s")]
    assert check_window(steady(), WINDOW, LOAD, planned_inputs=[32] * 1200, slos=slos) == []


def test_a_stalled_client_loop():
    records = steady()
    records.lags[:50] = 0.3
    assert "loop lag p99 300 ms, allowed 20 ms" in one(check_window(records, WINDOW, LOAD))


def test_lag_is_judged_by_the_latency_that_it_spoils():
    """30 ms are too much for a TTFT of 100 ms, and nothing for one of 2 s; scaled time scales the lag."""
    records = steady()
    records.lags[:] = 0.03
    assert check_window(records, WINDOW, LOAD) != []
    slow = change(records, "first", steady().column("first") + 2.0)
    assert check_window(slow, WINDOW, LOAD) == []


def test_requests_sent_late():
    window = Window(2.0, 22.0, by_plan=True)
    assert check_window(steady(open_loop=True, late=0.005), window, LOAD) == []
    assert "send lag p99 60 ms" in one(check_window(steady(open_loop=True, late=0.06), window, LOAD))


def test_answers_of_another_length():
    records = change(steady(), "completion_tokens", 7.0)
    assert "another length than planned (first: 7 tokens instead of 10" in one(check_window(records, WINDOW, LOAD))
    assert check_window(change(steady(), "completion_tokens", 7.0, share=0.002), WINDOW, LOAD) == []


def test_prompts_of_another_length():
    reasons = check_window(steady(), WINDOW, LOAD, planned_inputs=[31] * 1200)
    assert "prompts have another length" in one(reasons)
    assert check_window(steady(), WINDOW, LOAD, planned_inputs=[0] * 1200) == []


def test_no_usage():
    assert "no usage" in one(check_window(change(steady(), "completion_tokens", np.nan), WINDOW, LOAD))


def test_a_p99_objective_needs_a_thousand_requests():
    objective = ObjectiveSpec(metric="ttft", percentile=99)
    assert check_window(steady(1300), WINDOW, LOAD, objectives=[objective]) == []
    text = one(check_window(steady(900), WINDOW, LOAD, objectives=[objective]))
    assert "p99 (objective ttft) needs 1000, the window has 765" in text


def test_an_slo_needs_its_requests():
    text = one(check_window(steady(50), WINDOW, LOAD, slos=[SloSpec(metric="e2e", percentile=95, limit="9s")]))
    assert "p95 (SLO on e2e) needs 60" in text


def test_a_window_shorter_than_a_request():
    assert "shorter than a typical request" in one(check_window(steady(), Window(2.0, 2.1), LOAD))


def test_a_window_without_its_requests():
    load = LoadSpec(window=WindowSpec(requests=5000, max_duration=20))
    assert "of 5000 requests ended within window.max_duration" in one(check_window(steady(), WINDOW, load))


def test_an_empty_window():
    assert "no request ended" in one(check_window(steady(), Window(100.0, 120.0), LOAD))


def test_a_client_that_ran_dry():
    records = steady()
    records.counts.update(starved=100, overdue=50)
    assert len(check_window(records, WINDOW, LOAD)) == 2


def watch(*values: dict[str, float]) -> EngineWatch:
    found = EngineWatch(None)
    found.readings = [Reading(2.0 + 20 * k, 2.001 + 20 * k, value) for k, value in enumerate(values)]
    return found


@pytest.mark.parametrize(("served", "valid"), [(10_200, True), (10_150, True), (8_000, False), (15_000, False)])
def test_client_and_server_must_count_alike(served, valid):
    records = steady()
    seen = watch({"generation_tokens_total": 500.0}, {"generation_tokens_total": 500.0 + served})
    reasons = check_engine(records, seen, LOAD, start=0.0, scale=1.0, expected_hits=0.0)
    assert (reasons == []) is valid, reasons
    assert valid or "count different tokens" in reasons[0]


def in_bursts(tokens: int) -> Records:
    """Eight streams in step, ten requests each: a second with a token a chunk, then a second with several in each."""
    rows = np.full((80, len(RECORD_FIELDS)), np.nan)
    column = {name: rows[:, number] for number, name in enumerate(RECORD_FIELDS)}
    begin = np.repeat(2.0 * np.arange(10), 8)
    chunks = (begin[:, None] + np.linspace(0.01, 1.99, 100)).ravel()
    column["completion_tokens"][:], column["events"][:] = tokens, 100
    return Records(rows, chunks, np.arange(81) * 100, np.full(2400, 0.0005), {}, {}, 0.1, 20.0)


@pytest.mark.parametrize(("tokens", "served", "valid"), [(150, 9_200, True), (150, 14_000, False), (100, 9_200, False)])
def test_tokens_that_come_several_in_a_chunk_have_no_exact_time(tokens, served, valid):
    """From the middle of one request to the middle of another: the server wrote what follows the middle in bursts.

    On one H200 a study lost three measurements in a row to this: 176 chunks for 256 tokens while everything decoded.
    """
    seen = EngineWatch(None)
    seen.readings = [
        Reading(3.0, 3.0, {"generation_tokens_total": 0.0}),
        Reading(17.0, 17.0, {"generation_tokens_total": float(served)}),
    ]
    reasons = check_engine(in_bursts(tokens), seen, LOAD, start=0.0, scale=1.0, expected_hits=0.0)
    assert (reasons == []) is valid, reasons


def test_prefix_hits_that_the_load_cannot_give():
    seen = watch(
        {"prefix_cache_hits_total": 0.0, "prefix_cache_queries_total": 0.0},
        {"prefix_cache_hits_total": 300.0, "prefix_cache_queries_total": 1000.0},
    )
    reasons = check_engine(steady(), seen, LOAD, start=0.0, scale=1.0, expected_hits=0.0)
    assert "hit rate 30%, the load can give 0% at most" in one(reasons)
    shared = LoadSpec(prefix=PrefixSpec(tokens=256))
    assert check_engine(steady(), seen, shared, start=0.0, scale=1.0, expected_hits=0.5) == []


def test_prometheus_text_is_summed_over_labels():
    text = '# HELP x\nvllm:a_total{engine="0",b="x y"} 2\nvllm:a_total{engine="1"} 3.5\nup 1\nbroken\nnan_value NaN\n'
    found = parse_prometheus(text)
    assert found["vllm:a_total"] == 5.5 and found["up"] == 1


def test_engine_figures():
    names = ("num_preemptions_total", "kv_cache_usage_perc", "num_requests_waiting")
    seen = watch(dict(zip(names, (1.0, 0.5, 0.0), strict=True)), dict(zip(names, (4.0, 0.9, 8.0), strict=True)))
    figures = seen.figures()
    assert figures["preemptions"] == 3
    assert figures["kv_usage_max"] == 0.9 and figures["kv_usage_mean"] == pytest.approx(0.7)
    assert figures["waiting_max"] == 8


def run_warm_up(warm_up: WarmUp, rate_of, *, wave: float = 1.0) -> Observation:
    """Feed ten looks a wave; every wave of 8 requests takes `wave` seconds and gives `rate_of(wave)` chunks."""
    chunks = 0.0
    for step in range(1, 1000):
        chunks += rate_of((step - 1) // 10) / 10
        seen = Observation(step * wave / 10, step * 8 // 10, int(chunks), 8)
        if warm_up.done(seen):
            return seen
    raise AssertionError("never")


def test_warm_up_ends_when_two_waves_agree():
    warm_up = WarmUp(WarmupSpec(max_duration=60), Level("closed", 8))
    seen = run_warm_up(warm_up, lambda wave: [100, 300, 800, 810][min(wave, 3)])
    assert warm_up.steady and seen.now == pytest.approx(4.0, abs=0.3)


def test_warm_up_is_bounded():
    erratic = WarmUp(WarmupSpec(max_duration=60), Level("closed", 8))
    seen = run_warm_up(erratic, lambda wave: 1000 * (1 + wave % 2))
    assert not erratic.steady and seen.finished == 8 * 6
    slow = WarmUp(WarmupSpec(max_duration=1), Level("closed", 8))
    assert run_warm_up(slow, lambda wave: 10, wave=5.0).now == pytest.approx(1.0, abs=0.5)


def test_no_warm_up_when_none_is_wanted():
    assert WarmUp(WarmupSpec(requests=0), Level("closed", 8)).done(Observation(0.01, 0, 0, 8))


def progress(over: int, within: int, elapsed: float) -> Progress:
    waits = (1.0,) * over + (0.1,) * within
    return Progress(0, 1, Level("closed", 8), "window", elapsed, 20.0, over + within, 0, 8, 100.0, waits)


def test_a_level_is_hopeless_only_when_the_rest_cannot_mend_it():
    slo = [SloSpec(metric="ttft", percentile=95, limit="500ms")]
    assert breaks_slo(progress(50, 0, 3.0), slo) is None  # too early
    assert breaks_slo(progress(20, 0, 10.0), slo) is None  # too few
    assert breaks_slo(progress(4, 46, 10.0), slo) is None  # 4 of 112 expected are below 5 %
    assert "50 of 50" in (breaks_slo(progress(50, 0, 10.0), slo) or "")
    assert breaks_slo(progress(8, 42, 10.0), slo) is not None
    assert breaks_slo(progress(50, 0, 10.0), [SloSpec(metric="ttft", limit="900ms")]) is None  # not 1.5 times over
