"""A language model of a few lines, with known damage, for tests of the quality gate."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from autotune.quality.answers import ABSENT, Continuation, Reply, Scored, ScorerError, scored_of
from autotune.quality.arrays import Ids, Reals

VOCABULARY = 64


@dataclass(frozen=True)
class ToyScorer:
    """Next-token logits are a fixed function of the last two ids.

    Attributes:
        damage: standard deviation of a fixed error of the logits; KL is about damage^2 / 2 x (1 - sum p^2).
        noise: standard deviation of an error that is fresh in every request, as other batch shapes cause it.
        offset: added to every id that the tokenizer gives: another tokenizer.
        template: written before a conversation: the chat template.
        stuck: token that is written over and over again, whatever the logits say.
        broken: every log-probability is not a number.
        json: what is answered under a JSON schema; empty: the server refuses.
        dead: no request is answered.
        wrong: share of sums that it gets wrong.
        refuses: `score` or `continue`: answered with status 400.
        short: so many tokens are missing in every continuation.
        hooks: `ids` and `replay`: vLLM's newer hooks that it has.
        shifted: its scores by ids belong to the position before: a hook of another meaning.
    """

    damage: float = 0.0
    noise: float = 0.0
    offset: int = 0
    template: str = "<user>"
    stuck: int | None = None
    broken: bool = False
    json: str = '{"cold": true}'
    dead: bool = False
    short: int = 0
    refuses: tuple[str, ...] = ()
    wrong: float = 0.0
    hooks: tuple[str, ...] = ()
    shifted: bool = False
    seed: int = 0
    requests: Iterator[int] = field(default_factory=itertools.count, repr=False, compare=False)

    async def tokenize(self, text: str) -> tuple[int, ...]:
        self._alive()
        return tuple((ord(letter) + self.offset) % VOCABULARY for letter in text)

    async def tokenize_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        return await self.tokenize("".join(self.template + message["content"] for message in messages))

    async def score(self, tokens: Sequence[int]) -> Scored:
        self._alive("score")
        draw = self._draw(tokens)
        rows = [self._row(tokens[: at + 1], draw) for at in range(len(tokens) - 1)]
        return scored_of(rows, tokens[1:])

    async def score_ids(self, tokens: Sequence[int], ids: Ids) -> Scored:
        self._alive("score")
        self._has("ids")
        draw = self._draw(tokens)
        rows = [self._row(tokens[: at + 1], draw) for at in range(len(tokens) - 1)]
        source = [rows[0], *rows[:-1]] if self.shifted else rows
        given = [
            {int(i): other[int(i)] for i in wanted if i != ABSENT} | _first_and(row, token)
            for wanted, other, row, token in zip(ids, source, rows, tokens[1:], strict=True)
        ]
        return scored_of(given, tokens[1:], width=ids.shape[1] + 2)

    async def replay(self, tokens: Sequence[int], forced: Sequence[int]) -> Continuation:
        self._alive("continue")
        self._has("replay")
        draw, held = self._draw(tokens), [*tokens, *forced]
        rows = [self._row(held[: len(tokens) + at], draw) for at in range(len(forced))]
        return Continuation(tuple(forced), scored_of(rows, forced), len(forced), "length")

    async def continue_(self, tokens: Sequence[int], count: int) -> Continuation:
        self._alive("continue")
        draw, held, rows = self._draw(tokens), list(tokens), []
        for _ in range(count - self.short):
            row = self._row(held, draw)
            rows.append(row)
            held.append(max(row, key=lambda token: row[token]) if self.stuck is None else self.stuck)
        written = tuple(held[len(tokens) :])
        return Continuation(written, scored_of(rows, written), len(written), "length")

    async def chat(self, body: Mapping[str, object]) -> Reply:
        self._alive()
        if "messages" in body and "response_format" not in body and "tools" not in body:
            messages = body["messages"]
            return Reply(await self.complete(str(messages[-1]["content"]) if isinstance(messages, list) else "", 0))
        if "tools" in body or not self.json:
            raise ScorerError("no such thing here", 400)
        return Reply(self.json)

    async def complete(self, prompt: str, count: int) -> str:
        """Adds two numbers; a share `wrong` of all prompts gets a wrong sum, always the same prompts."""
        self._alive()
        numbers = [int(word) for word in prompt.replace("?", " ").split() if word.isdigit()]
        unlucky = np.random.default_rng([len(prompt), *numbers]).random() < self.wrong
        return f"The sum is {sum(numbers) + int(unlucky)}."

    async def context(self) -> int:
        return 100_000

    def _alive(self, what: str = "") -> None:
        if what in self.refuses:
            raise ScorerError(f"{what} is not supported", 400)
        if self.dead:
            raise ScorerError("connection refused")

    def _has(self, hook: str) -> None:
        if hook not in self.hooks:
            raise ScorerError("Not Found", 404)

    def _draw(self, tokens: Sequence[int]) -> np.random.Generator | None:
        """Noise of one request: another one in every request."""
        return np.random.default_rng([self.seed, next(self.requests), len(tokens)]) if self.noise else None

    def _row(self, before: Sequence[int], draw: np.random.Generator | None) -> dict[int, float]:
        logits = _logits(0, *before[-2:])
        if self.damage:
            logits = logits + 0.5 * self.damage * _logits(7, *before[-2:])
        if draw is not None:
            logits = logits + self.noise * draw.standard_normal(VOCABULARY)
        logs = logits - np.log(np.exp(logits).sum())
        if self.broken:
            logs = np.full(VOCABULARY, np.nan)
        return {token: float(value) for token, value in enumerate(logs)}


def _first_and(row: Mapping[int, float], token: int) -> dict[int, float]:
    """The likeliest token of a row and one other."""
    best = max(row, key=lambda item: row[item])
    return {best: row[best], token: row[token]}


@cache
def _logits(salt: int, *context: int) -> Reals:
    """A fixed draw with standard deviation 2."""
    return 2.0 * np.random.default_rng([salt, *context]).standard_normal(VOCABULARY)
