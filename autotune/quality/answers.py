"""What a server answers to the gate, as values: distributions, continuations, replies, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from autotune.quality.arrays import Ids, Reals

TOP = 20
"""Log-probabilities asked for per position: vLLM's default limit (`max_logprobs`), and more is refused, not cut."""
ABSENT = -1
"""Fills rows of ids where a server lists fewer tokens; no token has this id."""

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


def scored_of(rows: Sequence[Mapping[int, float]], targets: Sequence[int], width: int = TOP) -> Scored:
    """Rows of log-probabilities by id as arrays, `width` tokens a row at most.

    A missing target counts as the least likely token listed.
    """
    ids = np.full((len(rows), width), ABSENT, np.int64)
    values = np.full((len(rows), width), -np.inf)
    target = np.full(len(rows), np.nan)
    for index, (row, token) in enumerate(zip(rows, targets, strict=True)):
        # Not-a-number must neither vanish in the sorting nor hide behind a better token.
        best = sorted(row.items(), key=lambda item: (item[1] == item[1], -item[1]))[:width]
        ids[index, : len(best)] = [item[0] for item in best]
        values[index, : len(best)] = [item[1] for item in best]
        if row:
            target[index] = row.get(token, min(row.values()))
    return Scored(target, ids, values)


def prompt_row(row: object) -> dict[int, float]:
    """One position of vLLM's `prompt_logprobs`: {"id": {"logprob": ..., "rank": ...}}."""
    found: dict[int, float] = {}
    for key, item in row.items() if isinstance(row, dict) else ():
        value = item.get("logprob") if isinstance(item, dict) else None
        found[int(key)] = float(value) if isinstance(value, int | float) else float("nan")
    return found


def text_row(row: object) -> dict[int, float]:
    """One position of `top_logprobs`: {"token_id:17": -0.3}; a server that gives text only is told by its hash."""
    found: dict[int, float] = {}
    for key, value in row.items() if isinstance(row, dict) else ():
        name = str(key)
        number = name.removeprefix("token_id:")
        token = int(number) if number != name and number.isdigit() else crc32(name.encode())
        found[token] = float(value) if isinstance(value, int | float) else float("nan")
    return found


def first_choice(document: Json) -> dict[str, object]:
    choices = document.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise ScorerError("the answer holds no choice", 502)
    return choices[0]


def ids_in(document: Json, name: str) -> tuple[int, ...]:
    value = document.get(name)
    if not isinstance(value, list):
        raise ScorerError(f"the answer holds no {name}", 400)
    return tuple(int(item) for item in value)
