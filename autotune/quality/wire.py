"""The requests of the gate: what a server scores, how it goes on after a prompt, and how it splits text into ids."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

import aiohttp
import numpy as np

from autotune.quality.arrays import Ids, Reals

TOP = 20
"""Log-probabilities asked for per position: vLLM's default limit (`max_logprobs`), and more is refused, not cut."""
ABSENT = -1
"""Fills rows of ids where a server lists fewer tokens; no token has this id."""
TIMEOUT_S = 300.0

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Scored:
    """Next-token distributions at consecutive positions.

    Attributes:
        target: log-probability of the token that stands there, one per position, nats.
        ids: the likeliest tokens, one row per position, best first, filled up with `ABSENT`.
        logprobs: their log-probabilities, nats; -inf where `ids` is `ABSENT`.
    """

    target: Reals
    ids: Ids
    logprobs: Reals

    def __len__(self) -> int:
        return len(self.target)

    def head(self, count: int) -> Scored:
        """The first `count` positions."""
        return Scored(self.target[:count], self.ids[:count], self.logprobs[:count])

    @staticmethod
    def joined(parts: Sequence[Scored]) -> Scored:
        """Several stretches as one."""
        if not parts:
            return Scored(np.zeros(0), np.zeros((0, TOP), np.int64), np.zeros((0, TOP)))
        return Scored(
            np.concatenate([part.target for part in parts]),
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.logprobs for part in parts]),
        )


@dataclass(frozen=True, slots=True)
class Continuation:
    """What a server wrote after a prompt, greedily."""

    tokens: tuple[int, ...]
    scored: Scored
    completion_tokens: int
    finish_reason: str


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of a chat: its text, or the arguments of the tool that it calls. `cut`: it ran out of tokens."""

    text: str
    arguments: str | None = None
    cut: bool = False


class ScorerError(Exception):
    """The server did not answer as asked. `status` is the HTTP status, 0 where there was no answer at all."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status

    @property
    def refused(self) -> bool:
        """The server lives and cannot do what was asked (a route or an option is missing)."""
        return 400 <= self.status < 500


def first_error(errors: BaseExceptionGroup[ScorerError]) -> ScorerError:
    """The first of several failures, however deep it lies."""
    inner = errors.exceptions[0]
    return first_error(inner) if isinstance(inner, BaseExceptionGroup) else inner


class Scorer(Protocol):
    """A server under the gate. Every method raises `ScorerError` where it gets no usable answer."""

    async def tokenize(self, text: str) -> tuple[int, ...]:
        """Ids of a text, without special tokens."""

    async def tokenize_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Ids of a conversation as the chat template renders it, ready for the answer."""

    async def score(self, tokens: Sequence[int]) -> Scored:
        """Distributions at every position of `tokens` but the first."""

    async def continue_(self, tokens: Sequence[int], count: int) -> Continuation:
        """Go on greedily for exactly `count` tokens."""

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

    async def __aenter__(self) -> HttpScorer:
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
        return _ids(await self._post("/tokenize", {"prompt": text, "add_special_tokens": False}), "tokens")

    async def tokenize_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        body = {"messages": [dict(message) for message in messages], "add_generation_prompt": True}
        return _ids(await self._post("/tokenize", body), "tokens")

    async def score(self, tokens: Sequence[int]) -> Scored:
        body = {"prompt": list(tokens), "max_tokens": 1, "temperature": 0, "prompt_logprobs": TOP}
        choice = _choice(await self._post("/v1/completions", body))
        rows = choice.get("prompt_logprobs")
        if not isinstance(rows, list) or len(rows) != len(tokens):
            raise ScorerError("the answer holds no prompt_logprobs for every position", 400)
        return scored_of([_row(row) for row in rows[1:]], tokens[1:])

    async def continue_(self, tokens: Sequence[int], count: int) -> Continuation:
        body = {
            "prompt": list(tokens), "max_tokens": count, "temperature": 0, "ignore_eos": True, "logprobs": TOP,
            "return_tokens_as_token_ids": True, "return_token_ids": True,
        }  # fmt: skip
        document = await self._post("/v1/completions", body)
        choice = _choice(document)
        generated = _ids(choice, "token_ids")
        held = choice.get("logprobs")
        rows = held.get("top_logprobs") if isinstance(held, dict) else None
        if not isinstance(rows, list) or len(rows) != len(generated):
            raise ScorerError("the answer holds no logprobs for every token", 400)
        usage = document.get("usage")
        counted = usage.get("completion_tokens") if isinstance(usage, dict) else None
        return Continuation(
            generated,
            scored_of([_text_row(row) for row in rows], generated),
            counted if isinstance(counted, int) else len(generated),
            str(choice.get("finish_reason")),
        )

    async def chat(self, body: Mapping[str, object]) -> Reply:
        choice = _choice(await self._post("/v1/chat/completions", {"temperature": 0, **body}))
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
        return str(_choice(await self._post("/v1/completions", body)).get("text") or "")

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


def scored_of(rows: Sequence[Mapping[int, float]], targets: Sequence[int]) -> Scored:
    """Rows of log-probabilities by id as arrays. A missing target counts as the least likely token listed."""
    ids = np.full((len(rows), TOP), ABSENT, np.int64)
    values = np.full((len(rows), TOP), -np.inf)
    target = np.full(len(rows), np.nan)
    for index, (row, token) in enumerate(zip(rows, targets, strict=True)):
        # Not-a-number must neither vanish in the sorting nor hide behind a better token.
        best = sorted(row.items(), key=lambda item: (item[1] == item[1], -item[1]))[:TOP]
        ids[index, : len(best)] = [item[0] for item in best]
        values[index, : len(best)] = [item[1] for item in best]
        if row:
            target[index] = row.get(token, min(row.values()))
    return Scored(target, ids, values)


def _row(row: object) -> dict[int, float]:
    """One position of vLLM's `prompt_logprobs`: {"id": {"logprob": ..., "rank": ...}}."""
    found: dict[int, float] = {}
    for key, item in row.items() if isinstance(row, dict) else ():
        value = item.get("logprob") if isinstance(item, dict) else None
        found[int(key)] = float(value) if isinstance(value, int | float) else float("nan")
    return found


def _text_row(row: object) -> dict[int, float]:
    """One position of `top_logprobs`: {"token_id:17": -0.3}; a server that gives text only is told by its hash."""
    found: dict[int, float] = {}
    for key, value in row.items() if isinstance(row, dict) else ():
        name = str(key)
        number = name.removeprefix("token_id:")
        token = int(number) if number != name and number.isdigit() else crc32(name.encode())
        found[token] = float(value) if isinstance(value, int | float) else float("nan")
    return found


def _choice(document: Json) -> dict[str, object]:
    choices = document.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise ScorerError("the answer holds no choice", 502)
    return choices[0]


def _ids(document: Json, name: str) -> tuple[int, ...]:
    value = document.get(name)
    if not isinstance(value, list):
        raise ScorerError(f"the answer holds no {name}", 400)
    return tuple(int(item) for item in value)
