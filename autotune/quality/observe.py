"""Score an engine on the suite: record a reference, or observe a candidate on the texts of one.

Memory: log-probabilities of a prompt cost (positions x vocabulary x 4 bytes) a few times over, which no engine has
reserved. Prompts are therefore cut to `CHUNK` positions, however many a study asks for, and only two are in flight.
Long contexts are looked at through what the engine writes after them, which costs one position a step.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from autotune.quality import corpus
from autotune.quality.answers import Scored, ScorerError, first_error
from autotune.quality.divergence import Divergence, by_bucket, divergence, statistics
from autotune.quality.hooks import NONE, Hooks, find_hooks
from autotune.quality.reference import Noise, Reference, Trace, Window
from autotune.quality.sanity import abilities
from autotune.quality.wire import Scorer

SCORING_IN_FLIGHT = 2
CHUNK = 256
"""Positions of one prompt at most; a study that asks for more gets more prompts."""
RESERVE = 3
"""So many times `documents` are recorded; a candidate is scored on all only where the first part does not decide."""
LONG = {"4k": 4096, "16k": 16384, "32k": 32768}
LONG_TRACES = 4
"""Texts of a long context that are always looked at: of two, not even six times the limit is certain."""
LONG_RESERVE = 4
"""Further ones for where these do not decide."""
LONG_TOKENS = 32
"""Written after a long context at most: reading it is what costs."""
ALONE = 3
"""So many texts and continuations are repeated with nothing else in flight for the noise floor."""
RESTARTS = 6
"""After so many departures from the reference's text a trace is given up; what was compared until then counts."""

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Suite:
    """What is scored.

    Attributes:
        documents: fixed texts.
        positions: scored positions per text.
        concurrency: greedy continuations in flight: the load that the study tunes for.
        long: also look at long contexts, as far as the engine's context goes.
    """

    documents: int
    positions: int
    concurrency: int = 8
    long: bool = False

    @property
    def length(self) -> int:
        """Scored positions of one prompt."""
        return -(-self.positions // self.pieces)

    @property
    def pieces(self) -> int:
        """Prompts in place of one."""
        return -(-self.positions // CHUNK)

    @property
    def decode_tokens(self) -> int:
        """Length of a greedy continuation in tokens."""
        return max(8, min(64, self.positions // 4))

    @property
    def traces(self) -> int:
        """Greedy continuations of short prompts."""
        return max(4, self.documents // 2)

    @property
    def hash(self) -> str:
        """Changes with the texts and the sizes."""
        sizes = [self.documents, self.positions, self.concurrency, self.long, corpus.corpus_hash()]
        return hashlib.sha256(json.dumps(sizes).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Observation:
    """What an engine showed.

    Attributes:
        windows: divergences of the fixed texts.
        traces: divergences of the continuations.
        scored: its raw distributions.
        refused: what it would not do, by path (`prefill`, `decode`), in its own words.
        hooks: what it can do beyond any vLLM.
    """

    windows: tuple[Divergence, ...]
    traces: tuple[Divergence, ...]
    scored: tuple[Scored, ...]
    refused: tuple[tuple[str, str], ...] = ()
    hooks: Hooks = NONE


async def record(scorer: Scorer, suite: Suite, *, model: str, version: str, key: str) -> tuple[Reference, Observation]:
    """Record a reference, and run it against itself for the noise floor.

    Returns:
        The reference, and what the same engine showed when it ran again at the tuned concurrency.

    Raises:
        ScorerError: the server can score texts neither while it reads nor while it writes, or does not answer.
    """
    ids = [await scorer.tokenize(text.content) for text in corpus.texts()]
    context = await scorer.context() or suite.length + suite.decode_tokens + 2
    length = min(suite.length + 1, context - 1)
    first = suite.documents * suite.pieces
    cut = corpus.windows(ids, length, first * RESERVE)
    scored, unread = await _unless_refused(_each(cut, scorer.score, SCORING_IN_FLIGHT))
    traces, unwritten = await _unless_refused(_record_traces(scorer, suite, cut, ids, context))
    if unread and unwritten:
        raise ScorerError(f"no log-probabilities: {unread}", 400)
    windows = tuple(Window(tokens, found) for tokens, found in zip(cut, scored, strict=False))
    reference = Reference(
        suite.hash, model, version, key, await scorer.tokenize(corpus.PROBE), await chat_ids(scorer), windows,
        min(first, len(windows)), tuple(traces), await abilities(scorer), {},
    )  # fmt: skip
    again = await observe(scorer, reference, suite.concurrency)
    return replace(reference, noise=await _noise(scorer, reference, again)), again


async def observe(scorer: Scorer, reference: Reference, concurrency: int) -> Observation:
    """Score an engine on the texts that are always scored, last one first, and on the continuations but the reserve."""
    first = reference.windows[: reference.documents][::-1]
    hooks = await find_hooks(scorer, first[0].tokens) if first else NONE
    read, unread = await _unless_refused(observe_windows(scorer, first, hooks))
    traces = [trace for trace in reference.traces if not trace.reserve]
    wrote, unwritten = await _unless_refused(observe_traces(scorer, traces, concurrency, hooks))
    return Observation(
        tuple(item for item, _ in read),
        tuple(item for item, _ in wrote),
        tuple(scored for _, scored in (*read, *wrote)),
        tuple((path, why) for path, why in (("prefill", unread), ("decode", unwritten)) if why),
        hooks,
    )


async def _unless_refused(answers: Awaitable[list[_R]]) -> tuple[list[_R], str]:
    """The answers, or none and the server's words where it lives and cannot do what was asked."""
    found: list[_R] = []
    why = ""
    try:
        found = await answers
    except* ScorerError as errors:
        first = first_error(errors)
        if not first.refused:
            raise
        why = str(first)
    return found, why


async def chat_ids(scorer: Scorer) -> tuple[int, ...]:
    """The probe conversation as ids; empty where the server has no chat template."""
    try:
        return await scorer.tokenize_chat(corpus.CHAT)
    except ScorerError as error:
        if error.refused:
            return ()
        raise


async def observe_windows(
    scorer: Scorer, windows: Sequence[Window], hooks: Hooks = NONE
) -> list[tuple[Divergence, Scored]]:
    """Score fixed texts and compare them, on exactly the reference's tokens where the server can."""

    async def one(window: Window) -> tuple[Divergence, Scored]:
        if hooks.by_ids:
            scored = await scorer.score_ids(window.tokens, window.scored.ids)
        else:
            scored = await scorer.score(window.tokens)
        return divergence(window.scored, scored), scored

    return await _each(windows, one, SCORING_IN_FLIGHT)


async def observe_traces(
    scorer: Scorer, traces: Sequence[Trace], concurrency: int, hooks: Hooks = NONE
) -> list[tuple[Divergence, Scored]]:
    """Let the engine write the reference's continuations and compare every step."""

    async def one(trace: Trace) -> tuple[Divergence, Scored]:
        scored = await (replayed if hooks.replay else follow)(scorer, trace)
        return divergence(trace.scored.head(len(scored)), scored, trace.bucket), scored

    short = [trace for trace in traces if trace.bucket == "decode"]
    long = [trace for trace in traces if trace.bucket != "decode"]
    return [*await _each(short, one, concurrency), *await _each(long, one, 1)]


async def replayed(scorer: Scorer, trace: Trace) -> Scored:
    """The engine's distributions while it is made to write the reference's text: one request, every position."""
    written = await scorer.replay(trace.prompt, trace.tokens)
    return written.scored.head(_common(written.tokens, trace.tokens))


async def follow(scorer: Scorer, trace: Trace) -> Scored:
    """The engine's distributions along the reference's text, on the path that writes.

    The engine writes greedily. Up to and including its first other token the contexts are equal and can be compared;
    then it starts again from the reference's text up to there.
    """
    parts: list[Scored] = []
    done = 0
    for _ in range(RESTARTS):
        rest = trace.tokens[done:]
        if not rest:
            break
        written = await scorer.continue_((*trace.prompt, *trace.tokens[:done]), len(rest))
        same = _common(written.tokens, rest)
        usable = min(same + 1, len(rest), len(written.scored))
        if not usable:
            break  # it writes too few tokens, which tier 0 reports
        parts.append(retarget(written.scored.head(usable), rest[:usable]))
        done += usable
    return Scored.joined(parts)


def retarget(scored: Scored, tokens: Sequence[int]) -> Scored:
    """The same distributions with other tokens as the text; one that is not listed counts as the last listed one."""
    matches = scored.ids == np.array(tokens, np.int64)[:, None]
    listed = np.where(np.isfinite(scored.logprobs), scored.logprobs, np.inf).min(axis=1)
    found = np.where(matches, scored.logprobs, -np.inf).max(axis=1)
    return Scored(np.where(matches.any(axis=1), found, listed), scored.ids, scored.logprobs)


async def _record_traces(
    scorer: Scorer, suite: Suite, cut: Sequence[tuple[int, ...]], ids: Sequence[Sequence[int]], context: int
) -> list[Trace]:
    """Continuations of the first windows (halved, so that they do not end where a text ends), then of long texts."""
    prompts = [(tokens[: max(1, len(tokens) // 2)], "decode") for tokens in cut[: suite.traces]]
    count = suite.decode_tokens
    found = await _each(prompts, lambda item: _trace(scorer, item[0], count, item[1]), suite.concurrency)
    for bucket, length in LONG.items() if suite.long else ():
        if length + count <= context:
            for turn, start in enumerate(corpus.starts(len(ids), LONG_TRACES, LONG_RESERVE)):
                text = corpus.long_text(ids, length, start)
                trace = await _trace(scorer, text, min(LONG_TOKENS, count), bucket)
                found.append(replace(trace, reserve=turn >= LONG_TRACES))
    return found


async def _trace(scorer: Scorer, prompt: tuple[int, ...], count: int, bucket: str) -> Trace:
    written = await scorer.continue_(prompt, count)
    return Trace(prompt, written.tokens, written.scored, bucket)


async def _noise(scorer: Scorer, reference: Reference, again: Observation) -> dict[str, Noise]:
    """The reference against itself: in another order and other batches (`again`), and a part of it one at a time."""
    some = reference.windows[: min(ALONE, reference.documents)]
    alone = [(await observe_windows(scorer, [window], again.hooks))[0][0] for window in some]
    short = [trace for trace in reference.traces if trace.bucket == "decode"][:ALONE]
    written = [item for item, _ in await observe_traces(scorer, short, 1, again.hooks)]
    floor: dict[str, Noise] = {}
    for documents in (again.windows, alone):
        if documents:
            floor["prefill"] = floor.get("prefill", Noise()).worst(noise_of(documents))
    for traces in (again.traces, written):
        for bucket, found in by_bucket(traces).items():
            floor[bucket] = floor.get(bucket, Noise()).worst(noise_of(found))
    return floor


def noise_of(documents: Sequence[Divergence]) -> Noise:
    """A comparison of an engine with itself as a noise floor."""
    found = statistics(documents)
    return Noise(found.kl.value, abs(found.loss.value), 1.0 - found.agreement.value)


async def _each(items: Sequence[_T], call: Callable[[_T], Awaitable[_R]], at_once: int) -> list[_R]:
    """`call` on every item, at most `at_once` at a time, results in order; the first failure cancels the rest."""
    slots = asyncio.Semaphore(at_once)

    async def one(item: _T) -> _R:
        async with slots:
            return await call(item)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(item)) for item in items]
    return [task.result() for task in tasks]


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the common beginning."""
    for index, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return index
    return min(len(first), len(second))
