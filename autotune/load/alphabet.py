"""What prompts can be made of on a given server: ordinary token ids, or words and their price in tokens."""

from __future__ import annotations

from typing import cast

import aiohttp

from autotune.load.control import control_session, root_of, unreachable
from autotune.load.report import Target
from autotune.load.wire import JsonValue
from autotune.load.workload import WORDS, Alphabet, ordinary_ids
from autotune.spec.study import LoadSpec

TIMEOUT = 60.0
SAMPLE = (
    "The quick study of prompts: when people write about weather, mathematics, trains, gardens, music and law, their "
    "words follow no single pattern. In 1998 she moved to a smaller town near the river, opened a shop for used books, "
    "and wrote letters every evening; some had an answer. def area(width, height): return width * height "
    "Later reports described engines, harvests, elections, medicine, distant planets and the price of bread. "
)
_FEW = 64
"""Fewer different ids than this are no alphabet."""


async def _post(target: Target, route: str, body: dict[str, JsonValue]) -> dict[str, JsonValue] | None:
    """POST JSON; None where the server answers with an error status.

    Raises:
        EnvironmentFault: the server cannot be reached.
    """
    url = root_of(target) + route
    try:
        async with control_session(target, TIMEOUT) as session, session.post(url, json=body) as response:
            answer = await response.json(content_type=None) if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise unreachable(url, error) from None
    return cast("dict[str, JsonValue]", answer) if isinstance(answer, dict) else None


async def _ids_from_tokenizer(target: Target) -> tuple[int, ...]:
    text = SAMPLE + " ".join(WORDS)
    answer = await _post(target, "/tokenize", {"model": target.model, "prompt": text, "add_special_tokens": False})
    tokens = answer.get("tokens") if answer else None
    ids = {item for item in tokens if isinstance(item, int)} if isinstance(tokens, list) else set()
    return tuple(sorted(ids)) if len(ids) >= _FEW else ()


async def _prompt_tokens(target: Target, api: str, words: int) -> int | None:
    """Price in tokens of a prompt of so many words, by asking for one token."""
    text = " ".join(WORDS[number % len(WORDS)] for number in range(words))
    body: dict[str, JsonValue] = {"model": target.model, "max_tokens": 1, "temperature": 0}
    body |= {"messages": [{"role": "user", "content": text}]} if api == "chat" else {"prompt": text}
    answer = await _post(target, "/v1/chat/completions" if api == "chat" else "/v1/completions", body)
    usage = answer.get("usage") if answer else None
    tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) else None


async def find_alphabet(target: Target, spec: LoadSpec) -> Alphabet:
    """How prompts of exact length are made on this server.

    By token ids where the completions route is used: from the vocabulary's size, else from the server's /tokenize. For
    chat, and where there is neither, as words whose price in tokens is asked from the server.

    Raises:
        EnvironmentFault: the server cannot be reached.
    """
    if spec.api == "completions":
        if target.vocabulary > _FEW:
            return Alphabet(ids=ordinary_ids(target.vocabulary))
        if ids := await _ids_from_tokenizer(target):
            return Alphabet(ids=ids)
    few, many = await _prompt_tokens(target, spec.api, 20), await _prompt_tokens(target, spec.api, 120)
    if few is None or many is None or many <= few:
        return Alphabet()
    price = (many - few) / 100
    return Alphabet(words_per_token=1 / price, overhead=max(0, round(few - 20 * price)))
