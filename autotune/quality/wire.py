"""The requests of the gate: what a server scores, how it goes on after a prompt, and how it splits text into ids."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Protocol, Self

import aiohttp

from autotune.quality import hookwire
from autotune.quality.answers import (
    TOP,
    Continuation,
    Json,
    Reply,
    Scored,
    ScorerError,
    first_choice,
    ids_in,
    prompt_row,
    scored_of,
    text_row,
)
from autotune.quality.arrays import Ids

TIMEOUT_S = 300.0


class Scorer(Protocol):
    """A server under the gate. Every method raises `ScorerError` where it gets no usable answer."""

    async def tokenize(self, text: str) -> tuple[int, ...]:
        """Ids of a text, without special tokens."""

    async def tokenize_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Ids of a conversation as the chat template renders it, ready for the answer."""

    async def score(self, tokens: Sequence[int]) -> Scored:
        """Distributions at every position of `tokens` but the first."""

    async def score_ids(self, tokens: Sequence[int], ids: Ids) -> Scored:
        """Like `score`, with the given ids (one row per position but the first) whatever their rank.

        The likeliest token and the text's own are in the rows, too. Only servers with that hook can.
        """

    async def continue_(self, tokens: Sequence[int], count: int) -> Continuation:
        """Go on greedily for exactly `count` tokens."""

    async def replay(self, tokens: Sequence[int], forced: Sequence[int]) -> Continuation:
        """Write `forced`, with the distributions at every step. Only servers with that hook can."""

    async def chat(self, body: Mapping[str, object]) -> Reply:
        """An answer of the chat route; `body` holds messages and options, the model is added."""

    async def context(self) -> int:
        """Longest request in tokens, 0 where the server does not say."""


class HttpScorer:
    """A server with vLLM's routes.

    Args:
        url: base URL without a trailing slash.
        model: name to ask for.
        api_key: bearer token, empty for none.
        timeout: seconds for one request; the first one on a CPU may compile for half a minute.
    """

    def __init__(self, url: str, model: str, api_key: str = "", timeout: float = TIMEOUT_S) -> None:
        self._url = url
        self._model = model
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # The server closes idle connections after 5 s; one that is taken up at that moment would be lost.
        connector = aiohttp.TCPConnector(force_close=True)
        self._session = aiohttp.ClientSession(
            connector=connector, trust_env=False, headers=self._headers, timeout=self._timeout
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def tokenize(self, text: str) -> tuple[int, ...]:
        return ids_in(await self._post("/tokenize", {"prompt": text, "add_special_tokens": False}), "tokens")

    async def tokenize_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        body = {"messages": [dict(message) for message in messages], "add_generation_prompt": True}
        return ids_in(await self._post("/tokenize", body), "tokens")

    async def score(self, tokens: Sequence[int]) -> Scored:
        body = {"prompt": list(tokens), "max_tokens": 1, "temperature": 0, "prompt_logprobs": TOP}
        choice = first_choice(await self._post("/v1/completions", body))
        rows = choice.get("prompt_logprobs")
        if not isinstance(rows, list) or len(rows) != len(tokens):
            raise ScorerError("the answer holds no prompt_logprobs for every position", 400)
        return scored_of([prompt_row(row) for row in rows[1:]], tokens[1:])

    async def continue_(self, tokens: Sequence[int], count: int) -> Continuation:
        body = {
            "prompt": list(tokens), "max_tokens": count, "temperature": 0, "ignore_eos": True, "logprobs": TOP,
            "return_tokens_as_token_ids": True, "return_token_ids": True,
        }  # fmt: skip
        document = await self._post("/v1/completions", body)
        choice = first_choice(document)
        generated = ids_in(choice, "token_ids")
        held = choice.get("logprobs")
        rows = held.get("top_logprobs") if isinstance(held, dict) else None
        if not isinstance(rows, list) or len(rows) != len(generated):
            raise ScorerError("the answer holds no logprobs for every token", 400)
        usage = document.get("usage")
        counted = usage.get("completion_tokens") if isinstance(usage, dict) else None
        return Continuation(
            generated,
            scored_of([text_row(row) for row in rows], generated),
            counted if isinstance(counted, int) else len(generated),
            str(choice.get("finish_reason")),
        )

    async def score_ids(self, tokens: Sequence[int], ids: Ids) -> Scored:
        document = await self._post(hookwire.PATH, hookwire.scoring_request(tokens, ids))
        return hookwire.scored_ids(document, tokens, ids)

    async def replay(self, tokens: Sequence[int], forced: Sequence[int]) -> Continuation:
        return hookwire.replayed(await self._post(hookwire.PATH, hookwire.replay_request(tokens, forced)))

    async def chat(self, body: Mapping[str, object]) -> Reply:
        choice = first_choice(await self._post("/v1/chat/completions", {"temperature": 0, **body}))
        message = choice.get("message")
        if not isinstance(message, dict):
            raise ScorerError("the answer holds no message", 502)
        calls = message.get("tool_calls")
        arguments: str | None = None
        if isinstance(calls, list) and calls and isinstance(calls[0], dict):
            function = calls[0].get("function")
            arguments = str(function.get("arguments")) if isinstance(function, dict) else None
        return Reply(str(message.get("content") or ""), arguments, choice.get("finish_reason") == "length")

    async def complete(self, prompt: str, count: int) -> str:
        """The text after a prompt, greedily, at most `count` tokens."""
        body = {"prompt": prompt, "max_tokens": count, "temperature": 0}
        return str(first_choice(await self._post("/v1/completions", body)).get("text") or "")

    async def context(self) -> int:
        data = (await self._send("GET", "/v1/models", None)).get("data")
        first = data[0] if isinstance(data, list) and data and isinstance(data[0], dict) else {}
        limit = first.get("max_model_len")
        return limit if isinstance(limit, int) else 0

    async def models(self) -> tuple[str, ...]:
        """Names that the server answers to."""
        data = (await self._send("GET", "/v1/models", None)).get("data")
        return tuple(str(item["id"]) for item in data if isinstance(item, dict)) if isinstance(data, list) else ()

    async def _post(self, path: str, body: Json) -> dict[str, object]:
        return await self._send("POST", path, {"model": self._model, **body})

    async def _send(self, method: str, path: str, body: Json | None) -> dict[str, object]:
        if self._session is None:
            raise RuntimeError("HttpScorer is used inside `async with`")
        try:
            async with self._session.request(method, self._url + path, json=body) as response:
                text, status = await response.text(errors="replace"), response.status
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ScorerError(f"{path}: {type(error).__name__}: {error}") from error
        if status != 200:
            raise ScorerError(f"{path} answers {status}: {text[:200]}", status)
        try:
            document = json.loads(text)
        except ValueError as error:
            raise ScorerError(f"{path} answers no JSON: {text[:80]}", 502) from error
        if not isinstance(document, dict):
            raise ScorerError(f"{path} answers no object", 502)
        return document
