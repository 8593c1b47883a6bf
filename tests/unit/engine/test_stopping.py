"""An end is brought about once and finished, whoever asks and whatever becomes of who asked."""

from __future__ import annotations

import asyncio

import pytest

from autotune.engine.protocol import StopReport
from autotune.engine.stopping import StopOnce


async def test_a_cancelled_caller_leaves_a_finished_end_behind_and_others_get_its_report() -> None:
    ends: list[str] = []
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def stop() -> StopReport:
        ends.append("begun")
        begun.set()
        await may_end.wait()
        ends.append("done")
        return StopReport(1.5)

    end = StopOnce(stop)
    first = asyncio.create_task(end())
    await begun.wait()
    second = asyncio.create_task(end())
    first.cancel()
    await asyncio.sleep(0)
    assert not first.done(), "it waits for the end that it has begun"
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await second == await end() == StopReport(1.5)
    assert ends == ["begun", "done"]
