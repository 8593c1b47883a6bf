"""The engine in real time, on a loop whose clock jumps."""

from __future__ import annotations

import asyncio

from autotune.simulator.config import resolve
from autotune.simulator.driver import LoadFaults, RealTimeEngine
from autotune.simulator.memory import plan
from autotune.virtualtime import VirtualLoop

STREAMS, LENGTH = 256, 64


async def counted_and_handed_out() -> list[tuple[int, int, int]]:
    """At each token handed out: how many clients have, the counter says, and the engine has written."""
    settings = resolve({"model": "qwen3-8b", "max_model_len": 4096, "quantization": "fp8"})
    engine = RealTimeEngine(settings, plan(settings), 1.0, 0.0, 0, LoadFaults())
    (core,) = engine.cores
    got = 0
    seen: list[tuple[int, int, int]] = []
    done = asyncio.Event()

    def tokens(gain: int, finished: bool) -> None:
        nonlocal got
        got += gain
        running = core.scheduler.running
        ended = STREAMS - len(running) - len(core.scheduler.waiting)
        written = ended * LENGTH + sum(request.emitted for request in running)
        seen.append((got, engine.states()[0].generation_tokens, written))
        if got == STREAMS * LENGTH:
            done.set()

    for number in range(STREAMS):
        engine.submit([number] * 16, LENGTH, 0, False, tokens, lambda error: None)
    await done.wait()
    return seen


def test_tokens_are_counted_when_the_api_server_has_them():
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        seen = runner.run(counted_and_handed_out())
    assert all(got == counted for got, counted, _ in seen)
    half = [row for row in seen if row[0] > STREAMS * LENGTH / 2]  # all have arrived by then
    assert max(written - got for got, _, written in half) > 2 * STREAMS  # the engine was ahead of its API server
