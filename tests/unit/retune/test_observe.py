"""The workload of a running service, from its own metrics and from Prometheus."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from autotune.retune.ledger import entry_from_json, entry_json
from autotune.retune.observe import Seen, observe_profile
from autotune.retune.triggers import mean_length
from autotune.spec.retune import TriggerSpec

Serve = Callable[[str, Callable[[web.Request], web.Response]], Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    runners = []

    async def start(path: str, answer: Callable[[web.Request], web.Response]) -> str:
        async def handle(request: web.Request) -> web.Response:
            return answer(request)

        application = web.Application()
        application.router.add_get(path, handle)
        runner = web.AppRunner(application)
        await runner.setup()
        runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


def page(requests: int) -> str:
    lines = []
    for name, edge in (("request_prompt_tokens", 1000), ("request_generation_tokens", 200)):
        lines += [f'vllm:{name}_bucket{{model_name="m",le="{edge // 2}.0"}} {requests // 2}.0',
                  f'vllm:{name}_bucket{{model_name="m",le="{edge}.0"}} {requests}.0',
                  f'vllm:{name}_bucket{{model_name="m",le="+Inf"}} {requests}.0']  # fmt: skip
    lines += [f'vllm:prefix_cache_hits_total{{model_name="m"}} {requests * 3}.0',
              f'vllm:prefix_cache_queries_total{{model_name="m"}} {requests * 10}.0']  # fmt: skip
    return "\n".join(lines) + "\n"


async def test_what_happened_while_it_was_watched_is_the_profile(serve: Serve) -> None:
    pages = [page(1000), page(1100)]
    url = await serve("/metrics", lambda request: web.Response(text=pages.pop(0)))
    seen = await observe_profile(TriggerSpec(metrics_url=f"{url}/v1", watch=0.05), {}, None, 1000.0)
    assert seen.note == "" and (profile := seen.profile) is not None
    assert (profile.requests, profile.prefix_hits) == (100, pytest.approx(0.3))
    assert profile.rate == pytest.approx(2000)
    assert mean_length(profile.inputs) == pytest.approx(500)


async def test_the_next_pass_takes_all_that_happened_since_and_does_not_wait(serve: Serve) -> None:
    pages = [page(1000), page(1100), page(91_100)]
    url = await serve("/metrics", lambda request: web.Response(text=pages.pop(0)))
    first = await observe_profile(TriggerSpec(metrics_url=url, watch=0.05), {}, None, 1000.0)
    assert first.reading is not None and entry_from_json(entry_json(first.reading)) == first.reading
    week = 7 * 86400.0
    later = TriggerSpec(metrics_url=url, watch=3600.0)  # watching would take an hour
    seen = await observe_profile(later, {}, first.reading, 1000.0 + week)
    assert seen.profile is not None and seen.profile.requests == 90_000
    assert seen.profile.rate == pytest.approx(90_000 / week, rel=1e-3)
    assert seen.profile.prefix_hits == pytest.approx(0.3)


async def test_too_few_requests_are_taken_together_with_those_of_the_next_pass(serve: Serve) -> None:
    pages = [page(1000), page(1100), page(1300), page(1700)]
    url = await serve("/metrics", lambda request: web.Response(text=pages.pop(0)))
    spec = TriggerSpec(metrics_url=url, watch=0.05, requests=500)
    first = await observe_profile(spec, {}, None, 1000.0)
    few = await observe_profile(spec, {}, first.reading, 2000.0)
    assert few.profile is not None and (few.profile.requests, few.reading) == (200, None)
    enough = await observe_profile(spec, {}, first.reading, 3000.0)
    assert enough.profile is not None and enough.profile.requests == 600 and enough.reading is not None


async def test_a_service_that_was_started_again_is_watched(serve: Serve) -> None:
    pages = [page(1000), page(1100), page(50), page(90)]
    url = await serve("/metrics", lambda request: web.Response(text=pages.pop(0)))
    spec = TriggerSpec(metrics_url=url, watch=0.05)
    first = await observe_profile(spec, {}, None, 1000.0)
    seen = await observe_profile(spec, {}, first.reading, 9000.0)
    assert seen.profile is not None and seen.profile.requests == 40


async def test_a_service_without_a_request_is_counted_from_now_on(serve: Serve) -> None:
    pages = [page(100), page(100), page(700)]
    url = await serve("/metrics", lambda request: web.Response(text=pages.pop(0)))
    spec = TriggerSpec(metrics_url=url, watch=0.05)
    first = await observe_profile(spec, {}, None, 1000.0)
    assert first.profile is None and "no request has ended" in first.note and first.reading is not None
    seen = await observe_profile(spec, {}, first.reading, 2000.0)
    assert seen.profile is not None and seen.profile.requests == 600


async def test_prometheus_gives_the_same(serve: Serve) -> None:
    asked: list[str] = []

    def answer(request: web.Request) -> web.Response:
        query = request.query["query"]
        asked.append(query)
        if "_bucket" in query:
            rows = [{"metric": {"le": le}, "value": [0, value]} for le, value in (("500.0", "60"), ("+Inf", "80"))]
        else:
            rows = [{"metric": {}, "value": [0, "30" if "hits" in query else "100"]}]
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": rows}})

    url = await serve("/api/v1/query", answer)
    spec = TriggerSpec(prometheus_url=url, selector='job="vllm"', watch=3600)
    assert (TriggerSpec(prometheus_url=url).watched, TriggerSpec(metrics_url=url).watched) == (7 * 86400, 60)
    seen = await observe_profile(spec, {}, None, 1000.0)
    assert seen.note == "" and (profile := seen.profile) is not None
    assert (profile.requests, profile.prefix_hits) == (80, pytest.approx(0.3))
    assert profile.rate == pytest.approx(80 / 3600)
    assert asked[0] == 'sum by (le) (increase(vllm:request_prompt_tokens_bucket{job="vllm"}[3600s]))'


@pytest.mark.parametrize("status", [401, 503])
async def test_a_service_that_does_not_answer_is_a_note_and_no_fault(serve: Serve, status: int) -> None:
    url = await serve("/metrics", lambda request: web.Response(status=status))
    seen = await observe_profile(TriggerSpec(metrics_url=url, watch=0.01), {}, None, 0.0)
    assert seen.profile is None and f"HTTP {status}" in seen.note


async def test_nobody_home_and_garbage_are_notes_too(serve: Serve) -> None:
    seen = await observe_profile(TriggerSpec(metrics_url="http://127.0.0.1:1", watch=0.01), {}, None, 0.0)
    assert seen.profile is None and "cannot be read" in seen.note
    url = await serve("/api/v1/query", lambda request: web.Response(text="<html>"))
    seen = await observe_profile(TriggerSpec(prometheus_url=url), {}, None, 0.0)
    assert seen.profile is None and "cannot be read" in seen.note
    assert await observe_profile(TriggerSpec(), {}, None, 0.0) == Seen(None)
