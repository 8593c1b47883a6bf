"""The engine room's own requests."""

from __future__ import annotations

from autotune.engine.client import EngineClient


async def test_who_asks_after_the_end_gets_no_answer_and_opens_nothing() -> None:
    client = EngineClient("http://127.0.0.1:9")
    assert not await client.healthy()
    await client.close()
    assert await client.metrics() == {}
    assert client._session is None
