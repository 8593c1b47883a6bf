"""`measure` against a scripted server: what is sent, what is measured, how it ends."""

from __future__ import annotations

import asyncio
import json
import time

import numpy as np
import pytest

from autotune.load.client import LoadClient
from autotune.load.measure import EngineDied, measure
from autotune.load.plan import planned_turns
from autotune.load.report import LevelReport
from autotune.spec.study import LoadSpec, SloSpec, WarmupSpec, WindowSpec


def load(**changes: object) -> LoadSpec:
    base: dict[str, object] = {
        "input_tokens": 16, "output_tokens": 8, "levels": [4], "warmup": WarmupSpec(requests=8, max_duration=2.0),
        "window": WindowSpec(duration=1.0, max_duration=6.0),
    }  # fmt: skip
    return LoadSpec.model_validate(base | changes)


def complaints(level: LevelReport) -> list[str]:
    """Why a level is invalid, but for lateness: the host of the tests may be busy."""
    return [reason for reason in level.invalid if "late" not in reason]


async def test_closed_loop_measures_what_the_server_does(start_server, client, tmp_path):
    server = await start_server(ttft=0.03, step=0.005)
    report = await measure(server.target, load(), trial_seed=1, folder=tmp_path, client=client)
    (level,) = report.levels
    assert complaints(level) == []
    assert server.most_active == 4
    # A busy host may be slow, never faster than the server says.
    ttft, tpot, e2e = (level.estimate(key).value for key in ("ttft_mean_ms", "tpot_mean_ms", "e2e_mean_ms"))
    assert 30 <= ttft < 300
    assert 4.5 <= tpot < 80
    assert ttft + 7 * tpot == pytest.approx(e2e, rel=0.1)
    cycle = e2e / 1e3
    assert level.estimate("output_throughput").value == pytest.approx(4 * 8 / cycle, rel=0.25)
    assert level.estimate("request_throughput").value == pytest.approx(4 / cycle, rel=0.25)
    assert level.estimate("error_share").value == 0
    total = level.estimate("total_throughput").value
    assert total == pytest.approx(level.estimate("output_throughput").value * 3, rel=0.1)
    assert level.samples is not None and level.samples.is_file()


async def test_requests_have_exact_lengths_fresh_ids_and_say_everything(start_server, client, tmp_path):
    server = await start_server()
    await measure(server.target, load(), trial_seed=1, folder=tmp_path, client=client)
    assert all(len(request["prompt"]) == 16 for request in server.requests)
    assert len({tuple(request["prompt"]) for request in server.requests}) == len(server.requests)
    assert all(0 < token < 32000 for request in server.requests for token in request["prompt"])
    request = server.requests[0]
    assert request["max_tokens"] == 8 and request["ignore_eos"] and request["temperature"] == 0
    assert request["stream_options"] == {"include_usage": True}
    assert "Authorization: Bearer secret" in server.headers[0]


async def test_trials_share_the_plan_and_not_the_content(start_server, client, tmp_path):
    server = await start_server()
    spec = load(input_tokens={"kind": "uniform", "low": 4, "high": 40}, arrivals="poisson", levels=[40])
    reports = []
    lengths = []
    for seed in (1, 2):
        server.requests.clear()
        reports.append(await measure(server.target, spec, trial_seed=seed, folder=tmp_path, client=client))
        lengths.append([len(request["prompt"]) for request in server.requests[:30]])
    first, second = (report.levels[0] for report in reports)
    assert first.plan_hash == second.plan_hash
    assert first.content_hash != second.content_hash
    assert lengths[0] == lengths[1]
    assert len(set(lengths[0])) > 5


async def test_poisson_arrivals_follow_the_plan_and_latency_counts_from_it(start_server, client, tmp_path):
    server = await start_server(ttft=0.02, step=0.002)
    spec = load(arrivals="poisson", levels=[50], window=WindowSpec(duration=2.0, max_duration=6.0))
    report = await measure(server.target, spec, trial_seed=1, folder=tmp_path, client=client)
    (level,) = report.levels
    assert complaints(level) == []
    data = np.load(level.samples)
    rows = {name: data["rows"][:, number] for number, name in enumerate(data["fields"])}
    ordered = np.sort(rows["due"])
    late = rows["sent"] - rows["due"]
    assert np.median(late) < 0.05 and late.min() >= 0
    gaps = np.diff(ordered)
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.35)
    assert 0.7 < gaps.std() / gaps.mean() < 1.4
    assert level.estimate("ttft_p50_ms").value >= 20


async def test_several_levels_on_one_engine_and_a_reset_before_each(start_server, client, tmp_path):
    server = await start_server()
    resets = []

    async def reset() -> bool:
        resets.append(server.active)
        return True

    report = await measure(
        server.target, load(levels=[1, 6]), trial_seed=1, folder=tmp_path, client=client, reset=reset
    )
    assert [str(item.level) for item in report.levels] == ["c=1", "c=6"]
    assert len(resets) == 2
    assert report.levels[1].estimate("output_throughput").value > report.levels[0].estimate("output_throughput").value
    assert report.levels[0].content_hash != report.levels[1].content_hash


async def test_a_dead_engine_raises_at_once(start_server, client, tmp_path):
    server = await start_server()
    begin = time.monotonic()

    def alive() -> str | None:
        return "the engine core ended" if time.monotonic() - begin > 0.5 else None

    with pytest.raises(EngineDied, match="engine core ended"):
        await measure(
            server.target,
            load(window=WindowSpec(duration=30)),
            trial_seed=1,
            folder=tmp_path,
            client=client,
            alive=alive,
        )
    assert time.monotonic() - begin < 3
    # The same client measures the next trial.
    report = await measure(server.target, load(), trial_seed=2, folder=tmp_path, client=client)
    assert report.levels[0].estimate("output_throughput").value > 0


async def test_cancellation_closes_everything(start_server, tmp_path):
    server = await start_server()
    task = asyncio.create_task(
        measure(server.target, load(window=WindowSpec(duration=30)), trial_seed=1, folder=tmp_path)
    )
    await server.until(lambda: server.active == 4)
    begin = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - begin < 2
    await server.until(lambda: server.active == 0)


async def test_nobody_listens(start_server, client, tmp_path):
    server = await start_server()
    await server.stop()
    with pytest.raises(EngineDied, match="0 of 4 connections"):
        await measure(server.target, load(), trial_seed=1, folder=tmp_path, client=client)


async def test_scaled_time_is_the_targets_time(start_server, client, tmp_path):
    """A target ten times faster than real: 20 ms here are 200 ms there."""
    server = await start_server(ttft=0.03, step=0.005)
    target = type(server.target)(server.target.url, "mock", time_scale=10.0, vocabulary=32000)
    spec = load(window=WindowSpec(duration=10.0, max_duration=60.0), warmup=WarmupSpec(requests=8, max_duration=20))
    begin = time.monotonic()
    (level,) = (await measure(target, spec, trial_seed=1, folder=tmp_path, client=client)).levels
    assert time.monotonic() - begin < 20
    assert 300 <= level.estimate("ttft_p50_ms").value < 3000
    assert level.window_s == pytest.approx(10, rel=0.5)
    assert level.estimate("output_throughput").value == pytest.approx(
        4 * 8 / (level.estimate("e2e_mean_ms").value / 1e3), rel=0.3
    )


async def test_scaled_open_loop_keeps_the_targets_rate(start_server, client, tmp_path):
    server = await start_server()
    target = type(server.target)(server.target.url, "mock", time_scale=10.0, vocabulary=32000)
    spec = load(
        arrivals="constant", levels=[5], window=WindowSpec(duration=10.0, max_duration=60.0),
        warmup=WarmupSpec(requests=8, max_duration=20),
    )  # fmt: skip
    (level,) = (await measure(target, spec, trial_seed=1, folder=tmp_path, client=client)).levels
    dues = np.sort(np.load(level.samples)["rows"][:, 1])
    assert np.diff(dues) == pytest.approx(0.2, abs=0.001)
    assert level.estimate("request_throughput").value == pytest.approx(5, rel=0.3)


async def test_goodput_and_progress(start_server, client, tmp_path):
    server = await start_server(ttft=0.03)
    seen = []
    report = await measure(
        server.target, load(stop_hopeless=False), trial_seed=1, folder=tmp_path, client=client, on_progress=seen.append,
        slos=[SloSpec(metric="ttft", percentile=90, limit="20ms")],
    )  # fmt: skip
    assert report.levels[0].estimate("goodput_share").value == 0
    assert {item.phase for item in seen} == {"warmup", "window"}


async def test_a_hopeless_level_is_stopped_early(start_server, client, tmp_path):
    server = await start_server(ttft=0.05)
    spec = load(window=WindowSpec(duration=20))
    slos = [SloSpec(metric="ttft", percentile=95, limit="10ms")]
    (level,) = (await measure(server.target, spec, trial_seed=1, folder=tmp_path, client=client, slos=slos)).levels
    assert level.stopped is not None and "TTFT limit of 10 ms" in level.stopped
    assert level.window_s < 10
    assert complaints(level) == []
    assert level.estimate("ttft_p50_ms").value >= 50


async def test_two_processes_share_the_load(start_server, tmp_path):
    server = await start_server()
    async with LoadClient(2) as client:
        (level,) = (await measure(server.target, load(levels=[6]), trial_seed=1, folder=tmp_path, client=client)).levels
    assert complaints(level) == []
    assert server.most_active == 6


async def test_processes_keep_one_schedule(start_server, tmp_path):
    """Three processes share the arrivals of one plan: together they follow its times, and none repeats another's."""
    server = await start_server(ttft=0.01)
    spec = load(
        arrivals="gamma", burstiness=0.5, levels=[40.0], window=WindowSpec(duration=1.5), warmup=WarmupSpec(requests=0)
    )
    async with LoadClient(3) as client:
        (level,) = (await measure(server.target, spec, trial_seed=1, folder=tmp_path, client=client)).levels
    rows = np.load(level.samples)["rows"]
    due = np.sort(rows[:, 1])
    planned = [turn.due for turn, _ in zip(planned_turns(spec, level.level, 0), due, strict=False)]
    assert due == pytest.approx(planned, abs=1e-6)
    assert len({json.dumps(request["prompt"]) for request in server.requests}) == len(server.requests)


async def test_the_window_goes_on_until_the_percentile_has_its_requests(start_server, client, tmp_path):
    """p95 needs 60 requests; half a second gives fewer."""
    server = await start_server(ttft=0.05)
    spec = load(window=WindowSpec(duration=0.2, max_duration=30.0), stop_hopeless=False)
    slos = [SloSpec(metric="ttft", percentile=95, limit="10s")]
    (level,) = (await measure(server.target, spec, trial_seed=1, folder=tmp_path, client=client, slos=slos)).levels
    assert complaints(level) == [] and level.stopped is None
    assert level.requests >= 60 and level.estimate("ttft_p95_ms") is not None


async def test_an_engine_too_slow_for_the_percentile_is_stopped_and_not_invalid(start_server, client, tmp_path):
    server = await start_server(ttft=0.2)
    spec = load(window=WindowSpec(duration=0.2, max_duration=1.0), stop_hopeless=False)
    slos = [SloSpec(metric="ttft", percentile=95, limit="10s")]
    (level,) = (await measure(server.target, spec, trial_seed=1, folder=tmp_path, client=client, slos=slos)).levels
    assert level.stopped is not None and "of 60 requests within window.max_duration (1 s)" in level.stopped
    assert complaints(level) == []
    assert level.estimate("ttft_mean_ms") is not None
