"""Requests whose chunks are left to gather: what is read of them less often must not be known less well."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import numpy as np
import pytest

from autotune.load.ends import RawResult
from autotune.load.measure import measure
from autotune.load.records import decode, spread
from autotune.load.wire import RECORD_FIELDS, WireRequest
from autotune.spec.study import LoadSpec, WarmupSpec, WindowSpec

TOKENS = 60
CHUNKS = 32
"""Of a server that puts two tokens into most: the first one, 16 that gather, 15 more, and the usage fills the mark."""
NONE = 1e-9
"""A share of the requests that is none of them."""


def test_chunks_of_one_read_are_spread_over_the_time_since_the_read_before():
    chunks = np.array([1.0, 2.0, 5.0, 5.0, 5.0, 1.0, 1.0, 4.0, 4.0])
    found = spread(chunks, np.array([5, 4]), gathered=np.array([True, False]))
    assert found.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 1.0, 1.0, 4.0, 4.0]
    # What came together with a request's first token has nothing before it to be spread over.
    assert spread(chunks[5:], np.array([4]), gathered=np.array([True])).tolist() == [1.0, 1.0, 2.5, 4.0]


@pytest.fixture
def play(start_server, client, tmp_path):
    """A level against a script: the level's report, and the columns and the chunk times of its requests."""

    async def run(script=None, share: float | None = NONE, **options: float):
        server = await start_server(script, **options) if script else await start_server(**options)
        spec = LoadSpec(
            input_tokens=8, output_tokens=TOKENS, levels=[4], warmup=WarmupSpec(requests=4, max_duration=10.0),
            window=WindowSpec(duration=0.3, requests=16, max_duration=30.0), itl_share=share,
        )  # fmt: skip
        (level,) = (await measure(server.target, spec, trial_seed=1, folder=Path(tmp_path), client=client)).levels
        data = np.load(level.samples)
        rows = {str(name): data["rows"][:, number] for number, name in enumerate(data["fields"])}
        chunks = np.split(data["chunks"].astype(float), data["offsets"][1:-1])
        return level, rows, chunks

    return run


async def test_only_the_gaps_are_not_known(play):
    level, rows, chunks = await play(step=0.002)
    assert not rows["gaps_seen"].any()
    assert level.estimate("itl_p50_ms") is None and level.estimate("stall_max_ms") is None
    for metric in ("ttft_p50_ms", "tpot_p50_ms", "e2e_p50_ms", "output_throughput"):
        assert level.estimate(metric) is not None, metric
    done = np.flatnonzero(rows["status"] == 0)
    assert len(done) >= 16
    for number in done:
        times = chunks[number]
        assert len(times) == TOKENS
        assert times[0] == pytest.approx(rows["first"][number], abs=1e-4)
        assert times[-1] == pytest.approx(rows["last"][number], abs=1e-4)
        assert (np.diff(times) >= 0).all()
        assert np.diff(times[2:]).max() < 0.04


async def test_of_a_share_the_gaps_are_known(play):
    level, rows, chunks = await play(share=0.5, step=0.002)
    seen = rows["gaps_seen"] == 1
    assert 0.3 < seen.mean() < 0.7
    assert level.estimate("itl_p50_ms").value == pytest.approx(2.0, rel=0.3)
    gaps = sum(len(chunks[number]) - 1 for number in np.flatnonzero(seen & (rows["status"] == 0)))
    assert level.estimate("itl_mean_ms").n <= gaps


async def test_an_end_below_the_mark_is_seen(play, pieces):
    """A server that puts several tokens into a chunk ends before all the chunks came that were waited for."""

    arrived: list[float] = []
    ended: list[float] = []

    async def script(server, request, reply):
        arrived.append(time.monotonic())
        await reply.head()
        for _ in range(CHUNKS):
            await asyncio.sleep(0.003)
            await reply.body(pieces.chunk(" the the"))
        await reply.body(pieces.usage(8, TOKENS))
        await asyncio.sleep(0.005)
        await reply.body(pieces.done)
        await reply.end()
        ended.append(time.monotonic())

    level, rows, _ = await play(script)
    assert not level.errors, level
    done = rows["status"] == 0
    assert (rows["events"][done] == CHUNKS).all() and (rows["completion_tokens"][done] == TOKENS).all()
    handed_over = np.array(arrived[4:]) - np.array(ended[: len(arrived) - 4])
    # The first four wait for chunks that never come, until they are overdue; from them it is known how many do.
    assert handed_over[:4].max() < 0.5 and np.median(handed_over[4:]) < 0.02, handed_over


async def test_an_error_in_mid_stream_fails_the_request(play, pieces):
    async def script(server, request, reply):
        await reply.head()
        for _ in range(12):
            await asyncio.sleep(0.001)
            await reply.body(pieces.chunk(" the"))
        await reply.body(b'data: {"error": {"message": "out of memory", "code": 500}}\n\n')
        await reply.body(pieces.done)
        await reply.end()

    level, rows, _ = await play(script)
    assert not (rows["status"] == 0).any()
    assert "out of memory" in f"{level.stopped} {level.notes}", level


async def test_what_has_gathered_counts_when_the_load_ends(start_server, client):
    """A load is stopped in the middle of answers; what was written by then must be in the books."""
    server = await start_server(ttft=0.01, step=0.005)
    await client.open(server.target, slots=1, open_loop=False, timeout=30.0, tick=0.05, gap_share=NONE)
    body = b'{"prompt": [1], "max_tokens": 400, "stream": true}'
    head = f"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    client.feed([WireRequest(0, float("nan"), 400, False, head + body)])
    client.go()
    await asyncio.sleep(0.73)
    (result,) = await client.stop()
    assert isinstance(result, RawResult)
    records = decode([result], 1.0)
    assert records.column("gaps_seen").tolist() == [0.0]
    # A token every 5 ms: the last of them is no older than a few, where a full read is 16 of them.
    newest, events = float(records.chunks[-1]), records.column("events")[0]
    assert records.stopped - newest < 0.03, (records.stopped, newest)
    assert events == len(records.chunks) > 60
    assert len(RECORD_FIELDS) == records.rows.shape[1]
