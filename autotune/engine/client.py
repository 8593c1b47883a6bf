"""The few requests that the engine room itself sends: health, ownership, probe, metrics, caches, server information."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from autotune.engine.prometheus import parse_metrics

_SHORT = aiohttp.ClientTimeout(total=5)
Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; status 0 where there was none, and then the text says why."""

    status: int
    text: str = ""

    def json(self) -> Json:
        """The object in the body, empty where it is none."""
        try:
            value = json.loads(self.text)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


class EngineClient:
    """Talks to one server. Nothing raises: no answer is an answer of status 0.

    Args:
        url: base URL without a trailing slash.
        api_key: sent as a bearer token with each request to /v1; empty for none.
    """

    def __init__(self, url: str, api_key: str = "") -> None:
        self.url = url
        self._key = api_key
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def close(self) -> None:
        """Close the connections; may be called twice. Whoever still asks afterwards gets no answer."""
        self._closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def healthy(self) -> bool:
        """GET /health says 200."""
        return (await self._send("GET", "/health")).status == 200

    async def reachable(self) -> bool:
        """Anything answers, be it an error."""
        return (await self._send("GET", "/health")).status != 0

    async def models(self, *, with_key: bool = True) -> Reply:
        """GET /v1/models."""
        return await self._send("GET", "/v1/models", key=self._key if with_key else "")

    async def probe(self, model: str, timeout: float, prompt: str | list[int] = "The") -> Reply:
        """A completion of two tokens; a server may be healthy and still not serve."""
        body: Json = {"model": model, "prompt": prompt, "max_tokens": 2, "temperature": 0, "ignore_eos": True}
        return await self._send("POST", "/v1/completions", body=body, key=self._key, timeout=timeout)

    async def metrics(self) -> dict[str, float]:
        """GET /metrics, summed over labels; empty where there are none."""
        reply = await self._send("GET", "/metrics")
        return parse_metrics(reply.text) if reply.status == 200 else {}

    async def reset_prefix_cache(self) -> bool:
        """POST /reset_prefix_cache; only servers in development mode have it."""
        return (await self._send("POST", "/reset_prefix_cache", key=self._key)).status == 200

    async def server_info(self, timeout: float) -> Json:
        """GET /server_info as JSON; empty where there is none or it takes more than `timeout` seconds."""
        reply = await self._send("GET", "/server_info?config_format=json", key=self._key, timeout=timeout)
        return reply.json() if reply.status == 200 else {}

    async def version(self) -> str:
        """GET /version; empty where there is none."""
        return str((await self._send("GET", "/version")).json().get("version", ""))

    async def get(self, path: str) -> Reply:
        """GET with the key."""
        return await self._send("GET", path, key=self._key)

    async def post(self, path: str, body: Mapping[str, object]) -> Reply:
        """POST a JSON object with the key."""
        return await self._send("POST", path, body=body, key=self._key)

    async def _send(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, object] | None = None,
        key: str = "",
        timeout: float | None = None,
    ) -> Reply:
        if self._closed:
            return Reply(0, "the connection was closed")
        if self._session is None:
            # A proxy from the environment has no business between us and loopback.
            self._session = aiohttp.ClientSession(trust_env=False)
        limit = _SHORT if timeout is None else aiohttp.ClientTimeout(total=timeout)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            async with self._session.request(
                method, self.url + path, json=body, headers=headers, timeout=limit
            ) as response:
                return Reply(response.status, await response.text(errors="replace"))
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            return Reply(0, f"{type(error).__name__}: {error}")


def tokens_in(reply: Reply) -> int:
    """Completion tokens that an answer contains: what usage says, else 1 where there is text."""
    data = reply.json()
    usage = data.get("usage")
    if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
        return int(usage["completion_tokens"])
    choices = data.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return 1 if choices[0].get("text") else 0
    return 0


def model_ids(reply: Reply) -> tuple[str, ...]:
    """Names in an answer of /v1/models."""
    data = reply.json().get("data")
    if not isinstance(data, list):
        return ()
    return tuple(str(item["id"]) for item in data if isinstance(item, dict) and "id" in item)
