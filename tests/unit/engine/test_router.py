"""The router over real sockets, before engines that note what they are asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from autotune.engine.dispatching import Place, RouterSettings
from autotune.engine.router import build_app, settings_from_json, settings_to_json

HANDED = {"do_remote_prefill": True, "remote_block_ids": [0, 1], "remote_engine_id": "e"}


@dataclass
class Engine:
    """A server with vLLM's routes: streams three events, and breaks where it is told to."""

    name: str
    fault: str = ""
    bodies: list[dict[str, object]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    aborted: asyncio.Event = field(default_factory=asyncio.Event)
    resets: int = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/health", self.health)
        app.router.add_post("/reset_prefix_cache", self.reset)
        return app

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": self.name}]})

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self.fault == "sick" else 200)

    async def reset(self, request: web.Request) -> web.Response:
        self.resets += 1
        return web.Response()

    async def complete(self, request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == f"Bearer key-{self.name}"
        body = await request.json()
        self.bodies.append(body)
        self.ids.append(request.headers.get("X-Request-Id", ""))
        if self.fault == "refuses":
            return web.json_response({"error": "too long"}, status=400)
        if not body.get("stream"):
            handed = body.get("kv_transfer_params") or {}
            return web.json_response({"kv_transfer_params": HANDED if handed.get("do_remote_decode") else None})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            for number in range(3):
                await response.write(f"data: {number}\n\n".encode())
                if self.fault == "breaks" and request.transport is not None:
                    request.transport.abort()
                    return response
                if self.fault == "slow":
                    await asyncio.sleep(30)
        except asyncio.CancelledError:
            self.aborted.set()
            raise
        await response.write(b"data: [DONE]\n\n")
        return response


@asynccontextmanager
async def routed(
    engines: list[Engine], *, transfer: bool = False, threshold: int = 10
) -> AsyncIterator[aiohttp.ClientSession]:
    servers = [TestServer(engine.app()) for engine in engines]
    for server in servers:
        await server.start_server()
    places = tuple(
        Place(engine.name, engine.name.partition("-")[0], str(server.make_url("")).rstrip("/"), f"key-{engine.name}")
        for engine, server in zip(engines, servers, strict=True)
    )
    settings = RouterSettings(places, threshold, transfer, api_key="own")
    router = TestServer(build_app(settings_from_json(settings_to_json(settings))))
    await router.start_server()
    try:
        async with aiohttp.ClientSession(router.make_url(""), headers={"Authorization": "Bearer own"}) as session:
            yield session
    finally:
        await router.close()
        for server in servers:
            await server.close()


async def ask(session: aiohttp.ClientSession, length: int, **more: object) -> tuple[int, str]:
    body = {"prompt": list(range(length)), "max_tokens": 8, "stream": True, **more}
    async with session.post("/v1/completions", json=body) as response:
        return response.status, await response.text()


WHOLE = "data: 0\n\ndata: 1\n\ndata: 2\n\ndata: [DONE]\n\n"


async def test_long_prompts_go_to_prefill_and_short_ones_to_decode() -> None:
    engines = [Engine("prefill-0"), Engine("decode-0")]
    async with routed(engines) as session:
        assert await ask(session, 5) == (200, WHOLE)
        assert await ask(session, 10) == (200, WHOLE)
        async with session.get("/router") as state:
            assert (await state.json())["requests"] == {"prefill-0": 1, "decode-0": 1}
    assert [[len(body["prompt"]) for body in engine.bodies] for engine in engines] == [[10], [5]]  # type: ignore[arg-type]


async def test_a_handed_on_cache_is_named_in_the_second_request() -> None:
    prefill, decode = Engine("prefill-0"), Engine("decode-0")
    async with routed([prefill, decode], transfer=True) as session:
        assert await ask(session, 12, stream_options={"include_usage": True}) == (200, WHOLE)
    assert prefill.bodies[0]["max_tokens"] == 1 and prefill.bodies[0]["stream"] is False
    assert decode.bodies[0]["kv_transfer_params"] == HANDED
    assert decode.bodies[0]["max_tokens"] == 8 and decode.bodies[0]["stream_options"] == {"include_usage": True}
    assert prefill.ids == decode.ids != [""], "both know the request by one name"


async def test_an_engine_without_a_connector_is_told_from_one_that_hands_on() -> None:
    class Deaf(Engine):
        async def complete(self, request: web.Request) -> web.StreamResponse:
            return web.json_response({"kv_transfer_params": None})

    async with routed([Deaf("prefill-0"), Engine("decode-0")], transfer=True) as session:
        status, text = await ask(session, 12)
    assert status == 502 and "hands no KV cache on" in text


async def test_what_prefill_refuses_is_the_answer() -> None:
    decode = Engine("decode-0")
    async with routed([Engine("prefill-0", "refuses"), decode], transfer=True) as session:
        assert await ask(session, 12) == (400, json.dumps({"error": "too long"}))
    assert decode.bodies == []


async def test_an_answer_that_breaks_off_is_seen_as_broken() -> None:
    async with routed([Engine("replica-0", "breaks")]) as session:
        with pytest.raises(aiohttp.ClientError):
            await ask(session, 5)


async def test_a_client_that_goes_away_ends_the_request() -> None:
    engine = Engine("replica-0", "slow")
    async with routed([engine]) as session:
        response = await session.post("/v1/completions", json={"prompt": [1], "stream": True})
        assert await response.content.readany() == b"data: 0\n\n"
        response.close()
        async with asyncio.timeout(10):
            await engine.aborted.wait()


async def test_keys_health_and_caches() -> None:
    engines = [Engine("prefill-0"), Engine("decode-0", "sick")]
    async with routed(engines) as session:
        async with session.get("/v1/models", headers={"Authorization": "Bearer wrong"}) as refused:
            assert refused.status == 401
        async with session.get("/v1/models") as listed:
            assert (await listed.json())["data"] == [{"id": "decode-0"}]
        async with session.get("/health") as health:
            assert (health.status, await health.json()) == (503, {"sick": ["decode-0"]})
        async with session.post("/reset_prefix_cache") as reset:
            assert reset.status == 200
        async with session.post("/v1/completions", data=b"garbage") as bad:
            assert bad.status == 400
    assert [engine.resets for engine in engines] == [1, 1]


async def test_an_engine_that_is_gone_is_named() -> None:
    settings = RouterSettings((Place("replica-0", "replica", "http://127.0.0.1:9"),))
    router = TestServer(build_app(settings))
    await router.start_server()
    try:
        async with aiohttp.ClientSession(router.make_url("")) as session:
            status, text = await ask(session, 5)
            assert status == 503 and "replica-0 does not answer" in text
            async with session.get("/health") as health:
                assert health.status == 503
    finally:
        await router.close()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"places": [{"url": "x"}]}', '{"places": [], "threshold": 3}'])
def test_settings_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        settings_from_json(text)
