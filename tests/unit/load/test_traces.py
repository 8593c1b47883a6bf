"""Traces of all formats: read, spread, replayed against a server, with prefixes that are really shared."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from autotune.errors import SpecError
from autotune.load.measure import measure
from autotune.load.plan import levels_of, mean_rate, planned_turns
from autotune.load.traces import read_trace, spread_ties
from autotune.spec.study import LoadSpec, TraceSpec, WarmupSpec, WindowSpec

DATA = Path(__file__).parents[2] / "data" / "traces"
FILES = {
    "mooncake": "mooncake_conversation.jsonl", "azure": "azure_2023_code.csv", "burstgpt": "burstgpt_example.csv",
    "sharegpt": "sharegpt_format.json",
}  # fmt: skip


def trace(form: str, **changes: object) -> TraceSpec:
    return TraceSpec.model_validate({"file": str(DATA / FILES[form]), "format": form} | changes)


def test_mooncake():
    turns = read_trace(trace("mooncake"), 1)
    assert len(turns) == 200
    assert (turns[0].input_tokens, turns[0].output_tokens, turns[0].due) == (6758, 500, 0.0)
    assert all(len(turn.blocks) * 512 >= turn.input_tokens for turn in turns)


def test_azure_and_its_seven_digits():
    turns = read_trace(trace("azure"), 1)
    assert len(turns) == 40
    assert (turns[0].input_tokens, turns[0].output_tokens) == (4808, 10)
    assert turns[1].due == pytest.approx(0.052, abs=1e-4)


def test_burstgpt():
    turns = read_trace(trace("burstgpt"), 1)
    assert [(turn.input_tokens, turn.output_tokens, turn.due) for turn in turns] == [
        (472, 18, 0.0), (1087, 230, 40.0), (417, 276, 113.0),
    ]  # fmt: skip


def test_sharegpt_has_texts_and_no_times():
    turns = read_trace(trace("sharegpt"), 1)
    assert turns[0].text == "Who are you?" and turns[0].due != turns[0].due
    load = LoadSpec(arrivals="trace", trace=trace("sharegpt"), levels=[4])
    assert [str(level) for level in levels_of(load)] == ["c=4"]


def test_plain_jsonl(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text('{"timestamp": 5, "input_tokens": 10, "output_tokens": 3, "hash_ids": [4], "block_tokens": 16}\n\n')
    (turn,) = read_trace(TraceSpec(file=str(file)), 1)
    assert (turn.input_tokens, turn.output_tokens, turn.blocks, turn.block_tokens, turn.due) == (10, 3, (4,), 16, 0.0)


def test_speed_and_limit():
    slow, fast = read_trace(trace("azure", limit=10), 1), read_trace(trace("azure", limit=10, speed=4.0), 1)
    assert len(slow) == 10
    assert [turn.due / 4 for turn in slow] == pytest.approx([turn.due for turn in fast])


def test_the_level_is_the_traces_own_rate_or_a_given_one():
    own = LoadSpec(arrivals="trace", trace=trace("azure"))
    (level,) = levels_of(own)
    assert level.value == pytest.approx(mean_rate(read_trace(own.trace, 1)))
    given = LoadSpec(arrivals="trace", trace=trace("azure"), levels=[2.0])
    turns = list(planned_turns(given, levels_of(given)[0], 0))
    assert mean_rate(turns) == pytest.approx(2.0)


def test_coarse_times_are_spread_and_keep_their_order():
    turns = read_trace(trace("mooncake"), 1)
    dues = np.array([turn.due for turn in turns])
    assert (np.diff(dues) >= 0).all()
    assert len(np.unique(dues)) == len(dues)
    again = np.array([turn.due for turn in read_trace(trace("mooncake"), 1)])
    assert (dues == again).all()
    spread = spread_ties(np.array([0.0, 0, 0, 3, 3, 6]), np.random.default_rng(1))
    assert spread[0] == 0 and spread[3] == 3 and spread[5] == 6 and (spread[1:3] < 3).all()


@pytest.mark.parametrize(
    ("form", "content", "message"),
    [
        ("mooncake", '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1]}', "1: hash_ids"),
        ("mooncake", '{"timestamp": 0, "input_length": 5, "output_length": 0, "hash_ids": [1]}', "1: output_length"),
        ("mooncake", "\nnonsense", ":2: the line is no JSON object"),
        ("jsonl", '{"input_tokens": 5, "output_tokens": 1}', "1: timestamp"),
        ("jsonl", '{"timestamp": 1, "input_tokens": 5, "output_tokens": 1, "hash_ids": ["a"]}', "1: hash_ids"),
        ("azure", "TIMESTAMP,ContextTokens\n", "has no column 'GeneratedTokens'"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\nnow,1,1\n", ":2: 'now' is no time"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,x,1\n", ":2: ContextTokens"),
        ("burstgpt", "Timestamp,Request tokens,Response tokens\nx,1,1\n", ":2: 'x' is no time"),
        ("burstgpt", "Timestamp,Request tokens,Response tokens\n", "holds no requests"),
        ("sharegpt", "{}", "must hold a list"),
        ("sharegpt", '[{"id": 1}]', "[0]: has no list 'conversations'"),
        ("sharegpt", "[", "is no JSON"),
    ],
)
def test_damaged_traces_say_where(tmp_path, form, content, message):
    file = tmp_path / "trace"
    file.write_text(content)
    with pytest.raises(SpecError, match=re.escape(message)):
        read_trace(TraceSpec(file=str(file), format=form), 1)


def test_a_missing_trace_says_so():
    with pytest.raises(SpecError, match="cannot read the trace"):
        read_trace(TraceSpec(file="/nowhere/trace.jsonl"), 1)


@pytest.mark.parametrize("form", ["mooncake", "azure", "burstgpt", "sharegpt"])
async def test_every_format_is_replayed(start_server, pieces, client, tmp_path, form):
    async def script(server, request, reply):
        await reply.head()
        await reply.body(pieces.chunk(" a") * request["max_tokens"])
        await reply.body(pieces.usage(server.count_prompt(request), request["max_tokens"]) + pieces.done)
        await reply.end()

    server = await start_server(script)
    load = LoadSpec(
        arrivals="trace", trace=trace(form, limit=30), levels=[4.0 if form == "sharegpt" else 40.0],
        warmup=WarmupSpec(requests=0), window=WindowSpec(duration=20, max_duration=25),
    )  # fmt: skip
    (level,) = (await measure(server.target, load, trial_seed=1, folder=tmp_path, client=client)).levels
    planned = list(planned_turns(load, level.level, 0))
    assert len(server.requests) == len(planned)
    assert sorted(r["max_tokens"] for r in server.requests) == sorted(turn.output_tokens for turn in planned)
    if form == "sharegpt":
        assert {r["prompt"] for r in server.requests} == {turn.text for turn in planned}
    else:
        assert sorted(len(r["prompt"]) for r in server.requests) == sorted(turn.input_tokens for turn in planned)
        data = np.load(level.samples)
        late = data["rows"][:, 2] - data["rows"][:, 1]
        assert (late >= 0).all()


async def test_mooncake_blocks_become_shared_prefixes(start_server, pieces, client, tmp_path):
    """Equal leading hash ids are equal tokens, block by block; different ids are not."""
    file = tmp_path / "trace.jsonl"
    file.write_text(
        '{"timestamp": 0, "input_length": 1500, "output_length": 2, "hash_ids": [7, 8, 9]}\n'
        '{"timestamp": 100, "input_length": 1100, "output_length": 2, "hash_ids": [7, 8, 10]}\n'
        '{"timestamp": 200, "input_length": 600, "output_length": 2, "hash_ids": [11, 12]}\n'
    )
    server = await start_server()
    load = LoadSpec(
        arrivals="trace", trace=TraceSpec(file=str(file), format="mooncake"), warmup=WarmupSpec(requests=0),
        window=WindowSpec(duration=5, max_duration=6),
    )  # fmt: skip
    await measure(server.target, load, trial_seed=1, folder=tmp_path, client=client)
    first, second, third = (request["prompt"] for request in server.requests)
    assert [len(first), len(second), len(third)] == [1500, 1100, 600]
    assert first[:1024] == second[:1024]
    assert first[1024:1100] != second[1024:1100]
    assert first[:512] != third[:512]
