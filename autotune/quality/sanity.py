"""Tier 0: is the engine sane? Cheap checks that catch what is plainly broken."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from autotune.load.report import Estimate
from autotune.quality.answers import Continuation, Reply, Scored, ScorerError
from autotune.quality.report import QualityCheck, QualityVerdict
from autotune.quality.wire import Scorer

STRUCTURED_TOKENS: Final = 40
RUN_OF_ONE_TOKEN: Final = 12
"""The same token so often in a row, where the reference does not do it, is a collapse."""
_LOWEST_BEST: Final = -100.0
"""The likeliest of V tokens has at least -ln V (about -12); vLLM writes -9999 where it computed no number."""

_JSON: Final = {
    "messages": [{"role": "user", "content": "Is ice cold? Reply as JSON."}],
    "max_tokens": STRUCTURED_TOKENS,
    "response_format": {
        "type": "json_schema",
        "json_schema": {
            "name": "answer",
            "schema": {
                "type": "object",
                "properties": {"cold": {"type": "boolean"}},
                "required": ["cold"],
                "additionalProperties": False,
            },
        },
    },
}
_TOOL: Final = {
    "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "max_tokens": STRUCTURED_TOKENS,
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
                    "required": ["city"],
                    "additionalProperties": False,
                },
            },
        }
    ],
    "tool_choice": {"type": "function", "function": {"name": "weather"}},
}


_WANTED: Final[Mapping[str, Mapping[str, object]]] = {"json": _JSON, "tool": _TOOL}


async def abilities(scorer: Scorer) -> frozenset[str]:
    """Structured answers that the engine manages: `json` (a schema is kept), `tool` (a named tool is called)."""
    return frozenset([name for name in _WANTED if await _manages(scorer, name) is True])


async def _manages(scorer: Scorer, ability: str) -> bool | None:
    """Whether a structured answer is valid; None where it ran out of tokens (white space is legal JSON)."""
    try:
        reply = await scorer.chat(_WANTED[ability])
    except ScorerError as error:
        if error.status == 0:
            raise
        return False
    valid = _valid(ability, reply)
    return None if reply.cut and not valid else valid


def _valid(ability: str, reply: Reply) -> bool:
    text = reply.text if ability == "json" else reply.arguments
    try:
        answer = json.loads(text or "")
    except ValueError:
        return False
    if not isinstance(answer, dict):
        return False
    return isinstance(answer.get("cold"), bool) if ability == "json" else isinstance(answer.get("city"), str)


async def structured_checks(scorer: Scorer, wanted: frozenset[str]) -> list[QualityCheck]:
    """What the reference managed, the candidate must manage."""
    notes = {"json": "an answer under a JSON schema is no valid JSON", "tool": "a tool call has no valid arguments"}
    found = []
    for ability in sorted(wanted):
        good = await _manages(scorer, ability)
        note = "" if good else f"{notes[ability]}; the reference's is" if good is False else "ran out of tokens"
        check = yes_or_no(ability, bool(good), note)
        found.append(replace(check, verdict=QualityVerdict.SKIPPED) if good is None else check)
    return found


def finite_check(scored: Sequence[Scored]) -> QualityCheck:
    """Every log-probability is a number, none is above 0, and the likeliest token has a plausible one."""
    bad = sum(_odd(item) for item in scored)
    total = sum(len(item) for item in scored)
    note = f"{bad} of {total} positions have impossible log-probabilities" if bad else ""
    return yes_or_no("finite", not bad, note)


def _odd(scored: Scored) -> int:
    best = scored.logprobs[:, 0]
    with np.errstate(invalid="ignore"):
        good = (best > _LOWEST_BEST) & (best <= 1e-3) & (scored.target <= 1e-3) & ~np.isnan(scored.logprobs).any(axis=1)
    return int((~good).sum())


def count_check(asked: int, written: Continuation) -> QualityCheck:
    """The engine writes and reports exactly as many tokens as asked for."""
    good = len(written.tokens) == asked == written.completion_tokens
    told = f"{asked} tokens asked for, {len(written.tokens)} written, {written.completion_tokens} reported"
    return yes_or_no("token_count", good, "" if good else told)


def repetition_check(reference: Sequence[int], written: Sequence[int]) -> QualityCheck:
    """The engine does not fall into one token where the reference does not."""
    run = longest_run(written)
    collapsed = run >= RUN_OF_ONE_TOKEN and longest_run(reference) < RUN_OF_ONE_TOKEN // 2
    return yes_or_no("repetition", not collapsed, f"one token {run} times in a row" if collapsed else "")


def longest_run(tokens: Sequence[int]) -> int:
    """Most equal tokens in a row."""
    best = current = 0
    before: int | None = None
    for token in tokens:
        current = current + 1 if token == before else 1
        best, before = max(best, current), token
    return best


def yes_or_no(name: str, good: bool, note: str, tier: int = 0) -> QualityCheck:
    """A check that holds or does not; its figure is 1 or 0."""
    value = 1.0 if good else 0.0
    verdict = QualityVerdict.PASSED if good else QualityVerdict.FAILED
    return QualityCheck(tier, name, Estimate(value, value, value, 1), 1.0, 0.0, verdict, note)
