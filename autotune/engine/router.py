"""A router before the engines of one trial: `python -m autotune.engine.router --port N`, settings in AUTOTUNE_ROUTER.

A prompt shorter than the threshold goes to the decode engine (or replica) with the fewest requests. A longer one goes
to the prefill engine with the fewest prompt tokens: that one answers it all, or, where engines hand their KV cache on,
reads the prompt and leaves the answer to a decode engine. Answers are passed on as they come.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict

import aiohttp
import uvloop
from aiohttp import web

from autotune.engine.dispatching import (
    Burden,
    Place,
    Route,
    RouterSettings,
    decode_body,
    prefill_body,
    prompt_tokens,
    route,
)

SETTINGS_VARIABLE = "AUTOTUNE_ROUTER"
"""Holds the settings as JSON: they contain keys, which must not stand on a command line."""
BODY_BYTES = 64 << 20
HEALTH_SECONDS = 5.0
_KEPT = ("content-type", "x-request-id", "retry-after")
"""Headers of an engine's answer that are passed on."""


class UpstreamError(Exception):
    """An engine does not answer."""


class Router:
    """The routes, over one session to all engines."""

    def __init__(self, settings: RouterSettings) -> None:
        self.settings = settings
        self.burden = Burden()
        self.handed_on = 0
        self._session: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        """Connections to the engines; no limit of their number, no limit of an answer's length."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0)
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False)
        return self._session

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions and /v1/chat/completions."""
        raw = await request.read()
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return _error("the body is no JSON object", 400)
        tokens = prompt_tokens(body, self.settings.characters_per_token)
        found = route(self.settings, self.burden, body, tokens)
        name = request.headers.get("X-Request-Id") or secrets.token_hex(16)
        try:
            if found.prefill is not None:
                first = await self._prefill(request, found.prefill, body, tokens, name)
                if isinstance(first, web.Response):
                    return first
                raw = json.dumps(first).encode()
                self.handed_on += 1
            return await self._answer(request, found, raw, tokens, name)
        except UpstreamError as error:
            return _error(str(error), 503)

    async def _prefill(
        self, request: web.Request, place: Place, body: Mapping[str, object], tokens: int, name: str
    ) -> dict[str, object] | web.Response:
        """Let `place` read the prompt; the body of the second request, or the answer that ends it here."""
        self.burden.take(place, tokens)
        try:
            url, headers = place.url + request.path, _headers(place, name)
            async with self.session.post(url, json=prefill_body(body), headers=headers) as response:
                text = await response.read()
                if response.status != 200:
                    return web.Response(body=text, status=response.status, content_type="application/json")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UpstreamError(f"{place.name} does not answer: {type(error).__name__}") from error
        finally:
            self.burden.done(place, tokens)
        second = decode_body(body, json.loads(text))
        if second is None:
            return _error(f"{place.name} hands no KV cache on; is it started with a KV connector?", 502)
        return second

    async def _answer(
        self, request: web.Request, found: Route, raw: bytes, tokens: int, name: str
    ) -> web.StreamResponse:
        place = found.answer
        cost = 0 if found.prefill is not None else tokens
        self.burden.take(place, cost)
        try:
            return await self._pass(request, place, raw, name)
        finally:
            self.burden.done(place, cost)

    async def _pass(self, request: web.Request, place: Place, raw: bytes, name: str) -> web.StreamResponse:
        """Send the request to `place` and hand its answer on, chunk by chunk."""
        response: web.StreamResponse | None = None
        headers = _headers(place, name) | {"Content-Type": request.content_type}
        try:
            async with self.session.request(
                request.method, place.url + request.path_qs, data=raw or None, headers=headers
            ) as upstream:
                kept = {key: value for key, value in upstream.headers.items() if key.lower() in _KEPT}
                response = web.StreamResponse(status=upstream.status, headers=kept)
                await response.prepare(request)
                async for chunk in upstream.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
                return response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if response is None:
                raise UpstreamError(f"{place.name} does not answer: {type(error).__name__}") from error
            # The answer has begun: a client must see that it is not whole.
            if request.transport is not None:
                request.transport.abort()
            return response

    async def forward(self, request: web.Request) -> web.StreamResponse:
        """Whatever does not depend on the engine: the last one answers."""
        try:
            return await self._pass(request, self.settings.places[-1], await request.read(), secrets.token_hex(16))
        except UpstreamError as error:
            return _error(str(error), 503)

    async def health(self, request: web.Request) -> web.Response:
        """200 where every engine says so."""
        states = await asyncio.gather(*(self._ask("GET", place, "/health") for place in self.settings.places))
        sick = [place.name for place, status in zip(self.settings.places, states, strict=True) if status != 200]
        return web.json_response({"sick": sick}, status=503 if sick else 200)

    async def reset(self, request: web.Request) -> web.Response:
        """POST /reset_prefix_cache to all engines."""
        states = await asyncio.gather(
            *(self._ask("POST", place, "/reset_prefix_cache") for place in self.settings.places)
        )
        return web.Response(status=max(states, default=200) if all(states) else 503)

    async def state(self, request: web.Request) -> web.Response:
        """GET /router: what went where."""
        return web.json_response({"requests": self.burden.given, "handed_on": self.handed_on})

    async def _ask(self, method: str, place: Place, path: str) -> int:
        try:
            async with asyncio.timeout(HEALTH_SECONDS):
                async with self.session.request(method, place.url + path, headers=_headers(place, "")) as response:
                    return response.status
        except (aiohttp.ClientError, TimeoutError, OSError):
            return 0


def build_app(settings: RouterSettings) -> web.Application:
    """The web application of a router."""
    router = Router(settings)

    @web.middleware
    async def guard(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """As vLLM: /v1 wants the key."""
        given = request.headers.get("Authorization", "")
        wanted = f"Bearer {settings.api_key}"
        if settings.api_key and request.path.startswith("/v1") and not secrets.compare_digest(given, wanted):
            return web.json_response({"error": "Unauthorized"}, status=401)
        return await handler(request)

    async def close(app: web.Application) -> None:
        await router.close()

    app = web.Application(middlewares=[guard], client_max_size=BODY_BYTES)
    app.on_cleanup.append(close)
    for path in ("/v1/completions", "/v1/chat/completions"):
        app.router.add_post(path, router.generate)
    app.router.add_get("/health", router.health)
    app.router.add_get("/router", router.state)
    app.router.add_post("/reset_prefix_cache", router.reset)
    app.router.add_route("*", "/{path:.*}", router.forward)
    return app


def settings_to_json(settings: RouterSettings) -> str:
    """For the variable; it holds keys."""
    return json.dumps(asdict(settings))


def settings_from_json(text: str) -> RouterSettings:
    """Read what `settings_to_json` wrote, or an operator by hand.

    Raises:
        ValueError: it is no such document.
    """
    data = json.loads(text)
    if not isinstance(data, dict) or not isinstance(data.get("places"), list) or not data["places"]:
        raise ValueError('wanted: {"places": [{"name": ..., "role": "prefill" or "decode", "url": ...}]}')
    try:
        return RouterSettings(**{**data, "places": tuple(Place(**place) for place in data["places"])})
    except TypeError as error:
        raise ValueError(str(error)) from error


async def serve(settings: RouterSettings, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    runner = web.AppRunner(build_app(settings), access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        print(f"router: {len(settings.places)} engines behind http://{host}:{port}", flush=True)
        await stop.wait()
    finally:
        await runner.cleanup()


def main() -> int:
    """Exit code 2 for bad settings."""
    parser = argparse.ArgumentParser(prog="python -m autotune.engine.router", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    try:
        settings = settings_from_json(os.environ.get(SETTINGS_VARIABLE, ""))
    except ValueError as error:
        print(f"router: {SETTINGS_VARIABLE} cannot be read: {error}", file=sys.stderr)
        return 2
    uvloop.run(serve(settings, options.host, options.port))
    return 0


def _headers(place: Place, name: str) -> dict[str, str]:
    headers = {"X-Request-Id": name} if name else {}
    return headers | ({"Authorization": f"Bearer {place.api_key}"} if place.api_key else {})


def _error(message: str, status: int) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "RouterError", "code": status}}, status=status)


if __name__ == "__main__":
    sys.exit(main())
