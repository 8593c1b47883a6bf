"""Plans, lengths, arrivals and contents."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from pydantic import ValidationError

from autotune.errors import SpecError
from autotune.load.arrivals import arrival_times
from autotune.load.lengths import draw_lengths
from autotune.load.plan import plan_hash, planned_turns
from autotune.load.report import Level, Target
from autotune.load.steady import Observation, WarmUp
from autotune.load.workload import Alphabet, RequestMaker, ordinary_ids
from autotune.spec.study import LengthSpec, LoadSpec, PrefixSpec, WarmupSpec, WindowSpec

TARGET = Target("http://127.0.0.1:8000", "m")
CLOSED = Level("closed", 4)


def prompts(spec: LoadSpec, count: int, seed: int = 1) -> list[list[int]]:
    maker = RequestMaker(TARGET, spec, Alphabet(ids=ordinary_ids(32000)), [seed, 0])
    turns = islice(planned_turns(spec, CLOSED, 0), count)
    return [json.loads(maker.make(turn, 1.0).data.split(b"\r\n\r\n", 1)[1])["prompt"] for turn in turns]


@pytest.mark.parametrize(
    ("kind", "mean", "stdev", "cv"),
    [("normal", 200, 40, 0.2), ("lognormal", 200, 100, 0.5), ("uniform", 200, 0, 0.57), ("fixed", 200, 0, 0)],
)
def test_length_laws(kind, mean, stdev, cv):
    spec = LengthSpec(kind=kind, mean=mean, stdev=stdev, high=399 if kind == "uniform" else None)
    drawn = draw_lengths(spec, np.random.default_rng(1), 20_000)
    assert drawn.mean() == pytest.approx(200, rel=0.03)
    assert drawn.std() / drawn.mean() == pytest.approx(cv, abs=0.03)


def test_lengths_are_cut():
    spec = LengthSpec(kind="normal", mean=10, stdev=50, low=5, high=20)
    drawn = draw_lengths(spec, np.random.default_rng(1), 1000)
    assert drawn.min() == 5 and drawn.max() == 20


def test_empirical_lengths(tmp_path):
    file = tmp_path / "lengths.txt"
    file.write_text("# mine\n10\n20\n\n20\n")
    drawn = draw_lengths(LengthSpec(kind="empirical", file=str(file)), np.random.default_rng(1), 3000)
    assert set(drawn.tolist()) == {10, 20}
    assert (drawn == 20).mean() == pytest.approx(2 / 3, abs=0.05)


def test_empirical_histograms(tmp_path):
    file = tmp_path / "lengths.json"
    file.write_text('{"buckets": [{"low": 0, "high": 10, "count": 1}, {"low": 100, "high": 110, "count": 3}]}')
    drawn = draw_lengths(LengthSpec(kind="empirical", file=str(file)), np.random.default_rng(1), 4000)
    assert drawn.min() >= 1 and drawn.max() <= 110
    assert ((drawn > 10) & (drawn <= 100)).sum() == 0
    assert (drawn > 100).mean() == pytest.approx(0.75, abs=0.04)


@pytest.mark.parametrize("content", ["", "ten\n", "{}", '{"buckets": []}', '{"buckets": [{"low": 1}]}'])
def test_damaged_length_files(tmp_path, content):
    file = tmp_path / "lengths"
    file.write_text(content)
    with pytest.raises(SpecError, match=re.escape(str(file))):
        draw_lengths(LengthSpec(kind="empirical", file=str(file)), np.random.default_rng(1), 5)


@pytest.mark.parametrize(("kind", "burstiness", "cv"), [("poisson", 1, 1), ("gamma", 0.25, 2), ("constant", 1, 0)])
def test_arrivals_have_the_rate_and_the_burstiness(kind, burstiness, cv):
    times = np.array(list(islice(arrival_times(kind, 8.0, burstiness, [1]), 20_000)))
    gaps = np.diff(times)
    assert 1 / gaps.mean() == pytest.approx(8, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, abs=0.06)
    # independent: no correlation between neighbours
    if cv:
        assert abs(np.corrcoef(gaps[1:], gaps[:-1])[0, 1]) < 0.03


def test_bursts_come_at_once_and_make_up_the_rate():
    times = list(islice(arrivals_of("bursts", levels=[8.0], burst=20), 200))
    assert sorted(set(times)) == pytest.approx([2.5 * number for number in range(1, 11)])
    assert all(times.count(at) == 20 for at in set(times))


@pytest.mark.parametrize("swing", [0.5, 1.0])
def test_a_ramp_rises_and_falls_about_its_rate(swing):
    """600 periods of 10 s at 20 a second: arrivals in each tenth of a period against the integral of the rate."""
    ramp = {"period": 10, "swing": swing}
    times = np.array(list(islice(arrivals_of("ramps", levels=[20.0], ramp=ramp, window={"duration": 10}), 120_000)))
    assert (np.diff(times) >= 0).all()
    assert len(times) / times[-1] == pytest.approx(20, rel=0.02)
    found = np.histogram(times % 10, bins=10, range=(0, 10))[0] / (times[-1] / 10)
    middles = np.arange(10) + 0.5
    wanted = 20 * (1 - swing + 2 * swing * np.minimum(middles, 10 - middles) / 5)
    assert found == pytest.approx(wanted, rel=0.06, abs=0.1)
    # Within a short part of the period the gaps are those of a Poisson process.
    top = [gap for gap, at in zip(np.diff(times), times[:-1] % 10, strict=True) if 4.5 < at < 5.0]
    assert np.std(top) / np.mean(top) == pytest.approx(1, abs=0.06)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"arrivals": "ramps", "window": {"duration": "90s"}}, "whole periods"),
        ({"arrivals": "ramps", "window": {"requests": 100}}, "whole periods"),
        ({"arrivals": "poisson", "burst": 4}, "only for `arrivals: bursts`"),
        ({"arrivals": "bursts", "ramp": {"period": "5s"}}, "only for `arrivals: ramps`"),
    ],
)
def test_bad_bursts_and_ramps(fields, message):
    with pytest.raises(ValidationError, match=message):
        LoadSpec.model_validate({"levels": [4.0]} | fields)


def arrivals_of(kind: str, **fields: object):
    spec = LoadSpec.model_validate({"arrivals": kind} | fields)
    return (turn.due for turn in planned_turns(spec, Level("open", spec.levels[0]), 0))


def in_step(spec: LoadSpec, streams: int, waves: int) -> list[Counter[int]]:
    """How often each turn's number is in each wave, where all streams take the same time for each request."""
    plan = planned_turns(spec, Level("closed", streams), 0)
    conversations: list[int] = []
    while len(conversations) < streams * waves:
        turn = next(plan)
        if turn.follows:
            conversations[-1] += 1
        else:
            conversations.append(1)
    ready, found = [0] * streams, [Counter[int]() for _ in range(waves)]
    for length in conversations:  # the next one goes to the stream that is free first
        stream = ready.index(min(ready))
        for number in range(length):
            if ready[stream] + number < waves:
                found[ready[stream] + number][number] += 1
        ready[stream] += length
    return found


@pytest.mark.parametrize(("streams", "turns"), [(16, 4), (64, 5), (6, 2)])
def test_streams_of_a_closed_loop_do_not_march_through_their_conversations_in_step(streams: int, turns: int):
    """From the wave on that the warm-up waits for, every wave has its share of first turns and of last ones."""
    waves = in_step(LoadSpec(turns=turns), streams, turns + 12)[turns:]
    for wave in waves:
        assert sum(wave.values()) == streams
        assert all(abs(wave[number] - streams / turns) < 1 for number in range(turns))
    warm_up = WarmUp(WarmupSpec(), Level("closed", streams), turns)
    assert not warm_up.done(Observation(9.0, max(2, turns) * streams - 1, 1000, streams))


@pytest.mark.parametrize("turns", [3, 100])
def test_conversations_are_whole_after_the_first_of_each_stream(turns: int):
    plan = planned_turns(LoadSpec(turns=turns), Level("closed", 4), 0)
    begins = [number for number, turn in zip(range(2000), plan, strict=False) if not turn.follows]
    assert set(np.diff(begins[4:])) == {turns}


@pytest.mark.parametrize("arrivals", ["constant", "poisson", "bursts", "ramps"])
def test_the_rate_of_conversations_is_that_of_their_requests(arrivals: str):
    spec = LoadSpec(turns=4, arrivals=arrivals, levels=[8], window=WindowSpec(duration=60))
    turns = list(islice(planned_turns(spec, Level("open", 8), 0), 8000))
    assert len(turns) / turns[-4].due == pytest.approx(8, rel=0.1)


def test_the_plan_depends_on_the_load_alone():
    spec = LoadSpec(input_tokens={"kind": "uniform", "high": 50}, arrivals="poisson", levels=[3])
    level = Level("open", 3)
    assert plan_hash(spec, level, planned_turns(spec, level, 0)) == plan_hash(
        spec, level, planned_turns(spec, level, 0)
    )
    other = spec.model_copy(update={"seed": 2})
    assert plan_hash(other, level, planned_turns(other, level, 0)) != plan_hash(
        spec, level, planned_turns(spec, level, 0)
    )


def test_prompts_are_exact_ordinary_and_fresh():
    spec = LoadSpec(input_tokens=64)
    first, second = prompts(spec, 50, seed=1), prompts(spec, 50, seed=2)
    assert all(len(prompt) == 64 for prompt in first)
    ids = {token for prompt in first for token in prompt}
    assert min(ids) >= 1000 and max(ids) < 31_000 and len(ids) > 500
    assert not {tuple(p[:16]) for p in first} & {tuple(p[:16]) for p in second}


@pytest.mark.parametrize("vocabulary", [300, 1000, 32_000, 49_152, 151_552, 262_144])
def test_ordinary_ids_leave_both_ends_out(vocabulary):
    ids = ordinary_ids(vocabulary)
    assert ids[0] > 0 and ids[-1] < vocabulary - 1 and len(ids) > vocabulary // 3


def test_shared_prefixes_have_the_stated_share():
    spec = LoadSpec(input_tokens=64, prefix=PrefixSpec(count=2, tokens=32, share=0.5))
    heads = [tuple(prompt[:32]) for prompt in prompts(spec, 200)]
    repeated = [head for head in heads if heads.count(head) > 1]
    assert len(set(repeated)) == 2
    assert len(repeated) / 200 == pytest.approx(0.5, abs=0.12)
    tails = [tuple(prompt[32:]) for prompt in prompts(spec, 200)]
    assert len(set(tails)) == 200


def test_conversations_repeat_what_was_said():
    spec = LoadSpec(input_tokens=20, output_tokens=5, turns=3)
    one, two, three, fresh = prompts(spec, 7)[3:]  # the first two conversations are shorter
    assert [len(one), len(two), len(three), len(fresh)] == [20, 45, 70, 20]
    assert two[:20] == one and three[:45] == two and fresh[:20] != one


async def test_chat_prompts_are_priced_by_the_server(start_server, client, tmp_path):
    """The scripted template adds seven tokens; a word is a token there."""
    from autotune.load.measure import measure

    server = await start_server()
    spec = LoadSpec(
        api="chat", input_tokens=30, output_tokens=3, levels=[2], warmup=WarmupSpec(requests=2, max_duration=1),
        window=WindowSpec(duration=0.3),
    )  # fmt: skip
    await measure(server.target, spec, trial_seed=1, folder=tmp_path, client=client)
    streamed = [request for request in server.requests if request.get("stream")]
    assert {server.count_prompt(request) for request in streamed} == {30}


async def test_conversations_run_turn_after_turn(start_server, client, tmp_path):
    from autotune.load.measure import measure

    server = await start_server()
    spec = LoadSpec(
        input_tokens=10, output_tokens=4, turns=2, levels=[2], warmup=WarmupSpec(requests=4, max_duration=1),
        window=WindowSpec(duration=0.5),
    )  # fmt: skip
    (level,) = (await measure(server.target, spec, trial_seed=1, folder=tmp_path, client=client)).levels
    assert [reason for reason in level.invalid if "late" not in reason] == []
    sizes = [len(request["prompt"]) for request in server.requests]
    assert abs(sizes.count(10) - sizes.count(24)) <= 2
    begun = {tuple(request["prompt"]) for request in server.requests if len(request["prompt"]) == 10}
    assert all(tuple(r["prompt"][:10]) in begun for r in server.requests if len(r["prompt"]) == 24)
