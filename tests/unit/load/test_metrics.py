"""The definitions on hand-made records, the intervals, and the page that quotes them."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from autotune.errors import SpecError
from autotune.load.bootstrap import Blocks
from autotune.load.metrics import (
    KEYS,
    Window,
    higher_is_better,
    latency_samples,
    metric_key,
    needed_requests,
    summarise,
    whole_waves,
)
from autotune.load.records import Records
from autotune.load.wire import RECORD_FIELDS
from autotune.spec.study import ObjectiveSpec, SloSpec

NAN = float("nan")


def records(requests: list[dict]) -> Records:
    """Records from dicts; `chunks` are the arrival times of the token chunks."""
    rows, chunks, counts = [], [], []
    for number, item in enumerate(requests):
        times = item["chunks"]
        row = {
            "index": number, "due": item.get("due", NAN), "sent": item["sent"],
            "first": times[0] if times else NAN, "visible": NAN, "choice": NAN,
            "last": times[-1] if times else NAN, "end": item.get("end", times[-1] if times else item["sent"]),
            "planned_output": item.get("planned", len(times)), "prompt_tokens": 10,
            "completion_tokens": item.get("tokens", len(times)), "cached_tokens": NAN, "events": len(times),
            "status": item.get("status", 0), "error": -1, "attempts": 1,
            "gaps_seen": item.get("gaps_seen", 1),
        }  # fmt: skip
        rows.append([row[name] for name in RECORD_FIELDS])
        chunks += times
        counts.append(len(times))
    return Records(
        rows=np.array(rows, dtype=float).reshape(-1, len(RECORD_FIELDS)),
        chunks=np.array(chunks, dtype=float),
        offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        lags=np.zeros(10), counts={}, errors={}, cpu_share=0.1, stopped=100.0,
    )  # fmt: skip


def marching(streams: int, waves: int) -> Records:
    """A closed loop of equal lengths: prompts are read one after the other for 2 s, then all streams write for 4 s."""
    requests = []
    for wave in range(waves):
        for stream in range(streams):
            first = 6.0 * wave + 2.0 * (stream + 1) / streams
            chunks = np.linspace(first, 6.0 * wave + 6.0 + 0.01 * stream, 40).tolist()
            requests.append({"sent": 6.0 * wave + 0.01 * stream, "chunks": chunks})
    return records(requests)


@pytest.mark.parametrize("begin", [6.3, 8.1, 9.0, 10.5, 11.99])
def test_it_does_not_matter_where_a_window_of_whole_waves_begins(begin: float):
    seen, truth = marching(16, 8), 16 * 40 / 6.0
    window = whole_waves(seen, Window(begin, begin + 27.0), 16)
    assert window.seconds % 6.0 == pytest.approx(0.0, abs=0.2)
    found = summarise(seen, window)["output_throughput"]
    assert found.value == pytest.approx(truth, rel=0.02)
    assert found.high - found.low < 0.05 * truth


def test_a_window_with_a_piece_of_a_wave_would_be_wrong():
    found = summarise(marching(16, 8), Window(8.0, 18.0))["output_throughput"]
    assert found.value > 1.05 * 16 * 40 / 6.0


def test_windows_without_two_waves_or_with_failures_stay_as_they_are():
    seen = marching(16, 8)
    assert whole_waves(seen, Window(9.0, 14.0), 16) == Window(9.0, 14.0)
    broken = records([{"sent": 0.1 * k, "chunks": [0.1 * k + 0.05], "status": int(k == 50)} for k in range(100)])
    assert whole_waves(broken, Window(0.0, 9.0), 2) == Window(0.0, 9.0)


@pytest.mark.parametrize("period", [0.5, 4.0])
def test_bursts_do_not_make_a_constant_rate_uncertain(period: float):
    """Four requests at a time, each with 20 tokens within half a period."""
    requests = [
        {"due": at, "sent": at, "chunks": (at + np.linspace(0.1, 0.5, 20) * period).tolist()}
        for at in np.repeat(np.arange(0.1, 40.0, period), 4)
    ]
    figure = summarise(records(requests), Window(10.0, 30.0, by_plan=True))["output_throughput"]
    assert figure.value == pytest.approx(80 / period)
    assert figure.high - figure.low < 0.15 * figure.value


def test_an_interval_from_three_blocks_holds_the_truth_as_often_as_it_says():
    generator = np.random.default_rng(3)
    times, held = np.arange(3) + 0.5, 0
    for weights in generator.normal(100.0, 5.0, (400, 3)):
        found = Blocks.equal(0, 3, 3).rate(times, weights)
        held += found.low <= 100.0 <= found.high
    assert 0.92 < held / 400 < 0.99


def test_closed_loop_definitions():
    seen = records([{"sent": 1.0, "chunks": [1.5, 1.6, 1.9]}, {"sent": 0.0, "chunks": [3.0]}])
    samples = latency_samples(seen, Window(1.0, 4.0))
    assert samples["ttft"].values.tolist() == [500.0, 3000.0]
    assert samples["tpot"].values == pytest.approx([200.0])
    assert samples["itl"].values == pytest.approx([100.0, 300.0])
    assert samples["e2e"].values == pytest.approx([900.0, 3000.0])
    figures = summarise(seen, Window(1.0, 4.0))
    assert figures["output_throughput"].value == pytest.approx(4 / 3)
    assert figures["total_throughput"].value == pytest.approx(24 / 3)
    assert figures["request_throughput"].value == pytest.approx(2 / 3)


def test_open_loop_latency_counts_from_the_plan():
    """A request that was sent late is not measured as fast: no coordinated omission."""
    seen = records([{"due": 1.0, "sent": 1.4, "chunks": [1.5, 1.6]}])
    samples = latency_samples(seen, Window(0.0, 2.0, by_plan=True))
    assert samples["ttft"].values == pytest.approx([500.0])
    assert samples["e2e"].values == pytest.approx([600.0])


def test_the_window_cuts_by_the_event_of_each_metric():
    seen = records([{"sent": 0.0, "chunks": [0.9, 1.1, 2.9, 3.1]}])
    samples = latency_samples(seen, Window(1.0, 3.0))
    assert len(samples["ttft"].values) == 0 and len(samples["e2e"].values) == 0
    assert samples["itl"].values == pytest.approx([200.0, 1800.0])
    assert summarise(seen, Window(1.0, 3.0))["output_throughput"].value == pytest.approx(1.0)


def test_unended_requests_of_an_open_loop_count_with_their_wait():
    seen = records([{"due": 1.0, "sent": 1.0, "chunks": [], "end": 9.0, "status": 2, "tokens": NAN, "planned": 4}])
    assert latency_samples(seen, Window(0.0, 2.0, by_plan=True))["ttft"].values == pytest.approx([8000.0])


def test_failed_requests_have_no_latency_and_hold_no_slo():
    requests = [{"sent": 0.1 * k, "chunks": [0.1 * k + 0.05, 0.1 * k + 0.1]} for k in range(30)]
    requests += [{"sent": 0.1 * k, "chunks": [0.1 * k + 0.01], "status": 1} for k in range(10)]
    figures = summarise(records(requests), Window(0.0, 4.0), [SloSpec(metric="ttft", limit="100ms")])
    assert figures["error_share"].value == pytest.approx(0.25)
    assert figures["goodput_share"].value == pytest.approx(0.75)
    assert figures["goodput"].value == pytest.approx(30 / 4)
    assert figures["ttft_p50_ms"].value == pytest.approx(50)
    assert figures["ttft_p50_ms"].n == 30


def test_a_chunk_stands_for_the_tokens_that_the_server_counted():
    figures = summarise(records([{"sent": 0.0, "chunks": [0.1, 0.2], "tokens": 8}]), Window(0.0, 1.0))
    assert figures["output_throughput"].value == pytest.approx(8)
    assert figures["tokens_per_chunk"].value == pytest.approx(4)


def test_a_percentile_needs_samples_beyond_it():
    assert [needed_requests(p) for p in (50, 90, 95, 99)] == [6, 30, 60, 300]
    assert needed_requests(99, objective=True) == 1000
    assert needed_requests(95, objective=True) == 60
    requests = [{"sent": 0.1 * k, "chunks": [0.1 * k + 0.05]} for k in range(40)]
    figures = summarise(records(requests), Window(0.0, 5.0))
    assert "ttft_p90_ms" in figures and "ttft_p95_ms" not in figures


def test_intervals_cover_the_truth():
    """The 95 % interval of a p95 holds the true one in most of 100 made-up runs."""
    generator = np.random.default_rng(3)
    truth = 3.0 * np.log(20)
    hits = 0
    for _ in range(100):
        times = np.sort(generator.random(400) * 20)
        (found,) = Blocks.equal(0, 20, 20).percentiles(generator.exponential(3.0, 400), times, [95.0])
        hits += found.low <= truth <= found.high
    assert 82 <= hits <= 100


def test_intervals_of_rates_widen_with_bursts():
    steady = Blocks.equal(0, 20, 20).rate(np.linspace(0, 19.99, 400), np.ones(400))
    bursts = Blocks.equal(0, 20, 20).rate(np.repeat(np.arange(0, 20, 5), 100) + 0.1, np.ones(400))
    assert steady.value == pytest.approx(bursts.value) == pytest.approx(20)
    assert bursts.high - bursts.low > 10 * (steady.high - steady.low)


def test_binned_percentiles_agree_with_exact_ones():
    generator = np.random.default_rng(5)
    values = generator.lognormal(3, 0.5, 50_000)
    (found,) = Blocks.equal(0, 10, 20).percentiles(values, generator.random(50_000) * 10, [99.0])
    assert found.low < found.value < found.high
    assert found.high / found.low < 1.1


def test_the_summary_is_quick():
    generator = np.random.default_rng(1)
    requests = [
        {"sent": t, "chunks": list(t + 0.05 + 0.01 * np.arange(100))} for t in np.sort(generator.random(2000) * 20)
    ]
    seen = records(requests)
    begin = time.process_time()
    figures = summarise(seen, Window(2.0, 20.0), [SloSpec(metric="ttft", limit="1s")])
    assert "ttft_p99_ms" in figures
    assert time.process_time() - begin < 2.0


def test_objectives_have_keys_and_directions():
    assert metric_key(ObjectiveSpec(metric="ttft")) == "ttft_p95_ms"
    assert metric_key(ObjectiveSpec(metric="tpot", percentile=50)) == "tpot_p50_ms"
    assert metric_key(ObjectiveSpec(metric="goodput")) == "goodput"
    with pytest.raises(SpecError, match="percentile 97 is not measured"):
        metric_key(ObjectiveSpec(metric="ttft", percentile=97))
    assert higher_is_better("output_throughput") and higher_is_better("capacity")
    assert not higher_is_better("ttft_p95_ms") and not higher_is_better("tpot")
    assert not higher_is_better("error_share")
    with pytest.raises(SpecError):
        higher_is_better("speed")


def test_the_documentation_has_every_key_and_formula():
    page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
    for key, definition in KEYS.items():
        if key.endswith("_ms") and "_p" in key and not key.endswith("_p95_ms"):
            continue  # percentiles stand for one another on the page
        assert f"`{key}`" in page, key
        assert definition.formula in page, key
        assert not definition.unit or definition.unit in page


def test_a_share_s_interval_stays_between_nothing_and_all():
    """Few blocks widen an interval, which had ended at 1.14 for a share."""
    times, marks = np.arange(8) + 0.5, np.array([1.0, 1, 1, 1, 1, 0, 0, 1])
    blocks = Blocks.equal(0, 8, 4)
    assert blocks.ratio(marks, np.ones(8), times).high > 1
    found = blocks.share(marks, times)
    assert (found.value, found.high) == (0.75, 1.0) and 0 <= found.low < 0.75
