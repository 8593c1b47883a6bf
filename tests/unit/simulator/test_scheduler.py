"""Invariants of the scheduler: exact tokens, no lost block, budgets kept, prefixes found, preempted work redone."""

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.simulator.blocks import BlockPool, Holding, block_hashes
from autotune.simulator.config import EngineSettings, resolve
from autotune.simulator.core import SimulatedRequest, Workload, simulate
from autotune.simulator.scheduler import Request, Scheduler


def engine(**changes: object) -> EngineSettings:
    return dataclasses.replace(resolve({"model": "qwen3-8b", "max_model_len": 4096}), **changes)


def drain(scheduler: Scheduler, requests: list[Request], check=lambda batch: None) -> list[int]:
    """Run all steps one after the other; returns the tokens each request was given."""
    given = {request.id: 0 for request in requests}
    for step in range(200_000):
        batch = scheduler.schedule(float(step))
        if batch is None:
            assert scheduler.idle
            return [given[request.id] for request in requests]
        check(batch)
        for request, gain in scheduler.complete(batch, float(step)):
            given[request.id] += gain
    raise AssertionError("the scheduler does not come to an end")


shapes = st.lists(st.tuples(st.integers(1, 700), st.integers(1, 60)), min_size=1, max_size=30)


@settings(max_examples=60, deadline=None)
@given(
    shapes=shapes,
    blocks=st.integers(50, 200),
    seqs=st.integers(1, 40),
    batched=st.integers(40, 600),
    threshold=st.sampled_from([0, 16, 100]),
    policy=st.sampled_from(["fcfs", "priority"]),
    speculative=st.sampled_from([0, 3]),
)
def test_every_request_gets_exactly_its_tokens_and_no_block_is_lost(
    shapes, blocks, seqs, batched, threshold, policy, speculative
):
    chosen = engine(
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        long_prefill_token_threshold=threshold,
        scheduling_policy=policy,
        speculative_tokens=speculative,
    )
    scheduler = Scheduler(chosen, blocks)
    source = random.Random(1)
    requests = [
        Request(number, prompt, output, tokens=[source.randrange(3) for _ in range(prompt)], priority=number % 3)
        for number, (prompt, output) in enumerate(shapes)
    ]
    for request in requests:
        scheduler.add(request)

    def check(batch):
        assert 0 < batch.tokens <= batched + speculative
        assert len(scheduler.running) <= seqs
        assert 0 <= scheduler.pool.used <= blocks

    assert drain(scheduler, requests, check) == [output for _, output in shapes]
    assert scheduler.pool.used == 0
    assert scheduler.pool.available == blocks
    assert not scheduler.running
    assert not scheduler.waiting


def test_too_few_blocks_preempt_and_the_work_is_done_again():
    scheduler = Scheduler(engine(prefix_caching=False), blocks=40)
    requests = [Request(number, 100, 200) for number in range(4)]
    for request in requests:
        scheduler.add(request)
    assert drain(scheduler, requests) == [200] * 4
    assert scheduler.counters.preemptions > 0
    assert sum(request.preemptions for request in requests) == scheduler.counters.preemptions


def test_a_known_prefix_is_not_computed_again():
    scheduler = Scheduler(engine(), blocks=1000)
    prompt = list(range(1000))
    first = Request(1, 1000, 2, tokens=prompt)
    scheduler.add(first)
    drain(scheduler, [first])
    second = Request(2, 1000, 2, tokens=[*prompt[:800], *range(5000, 5200)])
    scheduler.add(second)
    batch = scheduler.schedule(0.0)
    assert second.cached_tokens == 800
    assert batch is not None
    assert batch.tokens == 200
    assert scheduler.counters.prefix_hits == 800


def test_a_prompt_that_is_known_as_a_whole_still_computes_its_last_block():
    scheduler = Scheduler(engine(), blocks=1000)
    for number in (1, 2):
        request = Request(number, 160, 1, tokens=list(range(160)))
        scheduler.add(request)
        drain(scheduler, [request])
    assert request.cached_tokens == 144


def test_without_prefix_caching_nothing_is_found():
    scheduler = Scheduler(engine(prefix_caching=False), blocks=1000)
    for number in (1, 2):
        request = Request(number, 160, 1, tokens=list(range(160)))
        scheduler.add(request)
        drain(scheduler, [request])
    assert request.cached_tokens == 0


def test_a_long_prompt_is_cut_into_chunks_beside_decoding():
    scheduler = Scheduler(engine(max_num_batched_tokens=256), blocks=1000)
    short, long = Request(1, 10, 50), Request(2, 1000, 1)
    scheduler.add(short)
    scheduler.complete(scheduler.schedule(0.0), 0.0)
    scheduler.add(long)
    chunks = []
    while not long.done:
        batch = scheduler.schedule(1.0)
        chunks.append(sum(length for _, length in batch.prefill))
        assert batch.decode_tokens == 1
        scheduler.complete(batch, 1.0)
    assert chunks == [255, 255, 255, 235]


def test_without_chunks_a_prompt_waits_until_it_fits_whole():
    scheduler = Scheduler(engine(chunked_prefill=False, max_num_batched_tokens=4096), blocks=1000)
    requests = [Request(number, 3000, 1) for number in range(2)]
    for request in requests:
        scheduler.add(request)
    assert scheduler.schedule(0.0).prefill == [(0, 3000)]


def test_an_aborted_request_gives_its_blocks_back():
    scheduler = Scheduler(engine(), blocks=100)
    running, waiting = Request(1, 500, 10), Request(2, 1500, 10)
    scheduler.add(running)
    scheduler.add(waiting)
    batch = scheduler.schedule(0.0)
    scheduler.abort(waiting)
    scheduler.abort(running)
    assert scheduler.complete(batch, 0.0) == []
    assert scheduler.pool.used == 0
    assert scheduler.idle


def test_eviction_takes_the_longest_unused_first():
    pool = BlockPool(4)
    old, new = block_hashes(list(range(32)), 16), block_hashes(list(range(100, 132)), 16)
    for hashes in (old, new):
        holding = Holding()
        assert pool.allocate(holding, 2)
        for value in hashes:
            pool.register(holding, value)
        pool.release(holding)
    assert pool.allocate(Holding(), 2)
    assert pool.find(old) == 0
    assert pool.find(new) == 2


def test_more_kv_than_there_is_lowers_throughput_but_loses_nothing():
    roomy = engine(max_num_seqs=64)
    tight = dataclasses.replace(roomy, kv_cache_memory_bytes=2 * 2**30)
    load = Workload.closed_loop(64, 128, 1000, 100)
    fast, slow = simulate(roomy, load), simulate(tight, load)
    assert slow.preemptions > 0
    assert fast.preemptions == 0
    assert slow.output_tokens_per_s < fast.output_tokens_per_s
    assert [r.output_len for r in slow.requests] == [100] * 128


def test_an_open_loop_sends_at_its_times():
    requests = tuple(SimulatedRequest(100, 10, arrival_s=number * 2.0) for number in range(5))
    result = simulate(engine(), Workload(requests))
    assert [round(r.sent_s, 6) for r in result.requests] == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert max(r.ttft_s for r in result.requests) < 0.1


def test_the_same_seed_gives_the_same_run():
    load = Workload.closed_loop(8, 16, 200, 50)
    first, again, other = (simulate(engine(), load, noise=0.05, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.duration_s != other.duration_s


@pytest.mark.parametrize(
    "load",
    [Workload(()), Workload.closed_loop(1, 1, 4000, 1000), Workload.closed_loop(1, 1, 10, 0)],
    ids=["empty", "longer than max_model_len", "no output"],
)
def test_a_workload_that_cannot_run_is_refused(load):
    with pytest.raises(ValueError, match="request"):
        simulate(engine(), load)
