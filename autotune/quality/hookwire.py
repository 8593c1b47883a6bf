"""Requests and answers of vLLM's newer hooks, see `autotune.quality.hooks`."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Mapping, Sequence

import numpy as np

from autotune.quality.answers import (
    ABSENT,
    TOP,
    Continuation,
    Json,
    Scored,
    ScorerError,
    first_choice,
    ids_in,
    prompt_row,
    scored_of,
)
from autotune.quality.arrays import Ids, Reals

PATH = "/inference/v1/generate"


def scoring_request(tokens: Sequence[int], ids: Ids) -> Json:
    """Body that asks for given ids at every position but the first, the likeliest token and the text's own."""
    return {
        "token_ids": list(tokens),
        "sampling_params": {
            "max_tokens": 1, "temperature": 0, "prompt_logprobs": 1, "prompt_logprob_token_ids": ids.tolist(),
        },
    }  # fmt: skip


def scored_ids(document: Json, tokens: Sequence[int], ids: Ids) -> Scored:
    """The answer to `scoring_request`: rows with the given ids, the likeliest token and the text's own.

    Raises:
        ScorerError: the answer holds no score for every id.
    """
    rows = document.get("prompt_logprobs")
    if not isinstance(rows, list) or len(rows) != len(tokens):
        raise ScorerError("the answer holds no prompt_logprobs for every position", 400)
    values = _array(document.get("prompt_token_id_logprobs"))
    if values.shape != ids.shape:
        raise ScorerError(f"scores of shape {values.shape}, but ids of shape {ids.shape}", 400)
    found: list[Mapping[int, float]] = []
    for row, wanted, scores in zip(rows[1:], ids, values, strict=True):
        given = {int(token): float(score) for token, score in zip(wanted, scores, strict=True) if token != ABSENT}
        found.append(given | prompt_row(row))
    return scored_of(found, tokens[1:], width=ids.shape[1] + 2)


def _array(text: object) -> Reals:
    """Numbers in numpy's own format, base64."""
    try:
        raw = base64.b64decode(str(text), validate=True)
        found: Reals = np.load(io.BytesIO(raw), allow_pickle=False).astype(np.float64)
    except (binascii.Error, ValueError, EOFError, OSError, TypeError) as error:
        raise ScorerError(f"the answer holds no scores of the given ids: {error}", 400) from error
    return found


def replay_request(tokens: Sequence[int], forced: Sequence[int]) -> Json:
    """Body that makes the engine write `forced`. vLLM writes the shorter of the text and `max_tokens`."""
    return {
        "token_ids": list(tokens),
        "sampling_params": {
            "max_tokens": len(forced), "temperature": 0, "logprobs": TOP, "trace_decode_token_ids": list(forced),
        },
    }  # fmt: skip


def replayed(document: Json) -> Continuation:
    """The answer to `replay_request`.

    Raises:
        ScorerError: it holds no log-probabilities for every token.
    """
    choice = first_choice(document)
    written = ids_in(choice, "token_ids")
    held = choice.get("logprobs")
    content = held.get("content") if isinstance(held, dict) else None
    if not isinstance(content, list) or len(content) != len(written):
        raise ScorerError("the answer holds no logprobs for every token", 400)
    scored = scored_of([_content_row(item) for item in content], written)
    return Continuation(written, scored, len(written), str(choice.get("finish_reason")))


def _content_row(item: object) -> dict[int, float]:
    """One position: its token and the likeliest ones. Ids are numbers since 0.32, `token_id:17` before."""
    if not isinstance(item, dict):
        return {}
    tops = item.get("top_logprobs")
    found: dict[int, float] = {}
    for entry in (item, *(tops if isinstance(tops, list) else ())):
        value = entry.get("logprob") if isinstance(entry, dict) else None
        found[_token_id(entry)] = float(value) if isinstance(value, int | float) else float("nan")
    return found


def _token_id(entry: object) -> int:
    held = entry if isinstance(entry, dict) else {}
    token = held.get("token_id")
    if isinstance(token, int):
        return token
    name = str(held.get("token")).removeprefix("token_id:")
    if not name.isdigit():
        raise ScorerError("the answer names tokens by their text", 400)
    return int(name)
