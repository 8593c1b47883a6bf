"""Following the reference's text, recording, and the noise floor."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from autotune.quality.answers import Continuation, Scored, scored_of
from autotune.quality.candidate import candidate_checks
from autotune.quality.divergence import by_bucket, divergence
from autotune.quality.observe import CHUNK, Suite, follow, record, retarget
from autotune.quality.reference import Reference, Trace
from autotune.quality.report import QualityVerdict
from autotune.quality.verdict import Limits
from autotune.testing.toy_scorer import ToyScorer

PROMPT = (3, 1, 4, 1, 5)


@dataclass(frozen=True)
class Counting(ToyScorer):
    """Remembers the prompts that it continued and how much was in flight."""

    prompts: list[tuple[int, ...]] = field(default_factory=list, compare=False)

    async def continue_(self, tokens: Sequence[int], count: int) -> Continuation:
        self.prompts.append(tuple(tokens))
        return await super().continue_(tokens, count)


async def trace_of(model: ToyScorer, count: int = 24) -> Trace:
    written = await model.continue_(PROMPT, count)
    return Trace(PROMPT, written.tokens, written.scored, "decode")


async def test_an_equal_engine_is_followed_in_one_request() -> None:
    trace, model = await trace_of(ToyScorer()), Counting()
    scored = await follow(model, trace)
    assert len(model.prompts) == 1
    assert divergence(trace.scored, scored).kl == pytest.approx(0)


async def test_after_another_token_it_goes_on_from_the_references_text() -> None:
    trace, model = await trace_of(ToyScorer()), Counting(damage=0.3)
    scored = await follow(model, trace)
    assert len(model.prompts) > 1
    for prompt in model.prompts:
        assert prompt == (*PROMPT, *trace.tokens)[: len(prompt)]
    # Every position was compared on the reference's context: the same as scoring that text in one go.
    whole = await ToyScorer(damage=0.3).score((*PROMPT, *trace.tokens))
    expected = whole.target[len(PROMPT) - 1 :]
    assert np.allclose(scored.target, expected[: len(scored)])


async def test_a_hopeless_trace_is_given_up() -> None:
    trace, model = await trace_of(ToyScorer(), 64), Counting(damage=5.0)
    scored = await follow(model, trace)
    assert len(model.prompts) == 6
    assert 6 <= len(scored) < 64


def test_a_token_that_is_not_listed_counts_as_the_least_likely_listed_one() -> None:
    scored = scored_of([{1: -0.1, 2: -3.0}, {1: -0.1, 2: -3.0}], (1, 1))
    assert retarget(scored, (2, 9)).target.tolist() == [-3.0, -3.0]


def test_stretches_are_joined() -> None:
    one = scored_of([{1: -0.1}], (1,))
    assert len(Scored.joined([one, one])) == 2
    assert len(Scored.joined([])) == 0


async def test_a_noisy_reference_knows_its_noise() -> None:
    suite = Suite(documents=4, positions=16, concurrency=4)
    quiet, _ = await record(ToyScorer(), suite, model="m", version="1", key="k")
    noisy, again = await record(ToyScorer(noise=0.05), suite, model="m", version="1", key="k")
    assert quiet.noise["prefill"].kl == pytest.approx(0, abs=1e-9)
    assert 0.001 < noisy.noise["prefill"].kl < 0.006
    assert noisy.noise["decode"].kl > 0
    assert len(again.windows) == 4


async def test_long_contexts_are_recorded_as_far_as_the_context_goes() -> None:
    suite = Suite(documents=4, positions=16, concurrency=4, long=True)
    reference, again = await record(ToyScorer(), suite, model="m", version="1", key="k")
    long = {trace.bucket: len(trace.prompt) for trace in reference.traces if trace.bucket != "decode"}
    assert long == {"4k": 4096, "16k": 16384, "32k": 32768}
    assert len({trace.prompt for trace in reference.traces if trace.bucket == "4k"}) == 8, "no text twice"
    assert len(by_bucket(again.traces)["4k"]) == 4, "half of them are kept back"


@dataclass(frozen=True)
class FarDamaged(Counting):
    """Goes wrong behind long contexts only."""

    async def continue_(self, tokens: Sequence[int], count: int) -> Continuation:
        written = await super().continue_(tokens, count)
        return await ToyScorer(damage=self.seed / 100).continue_(tokens, count) if len(tokens) > 4000 else written


async def test_what_is_kept_back_of_a_length_of_context_is_looked_at_only_where_that_length_is_open() -> None:
    suite = Suite(documents=4, positions=16, concurrency=4, long=True)
    recorded, _ = await record(ToyScorer(), suite, model="m", version="1", key="k")
    reference = Reference.from_json(recorded.to_json())
    assert [trace.reserve for trace in reference.traces] == [trace.reserve for trace in recorded.traces]
    limits, looked_at = Limits(kl=0.02, loss=0.01, disagreement=0.9), {}
    for damage in (0, 22, 90):
        model = FarDamaged(seed=damage)
        checks = {check.name: check for check in await candidate_checks(model, reference, suite, limits)}
        verdict = checks["kl[4k]"].verdict.value
        looked_at[verdict] = len({prompt[:4096] for prompt in model.prompts if 4096 <= len(prompt) < 9000})
        assert checks["kl"].verdict is QualityVerdict.PASSED and checks["kl"].estimate.n == 4 * 16, "not read again"
    assert looked_at == {"passed": 4, "undecided": 8, "failed": 4}


@dataclass(frozen=True)
class Crowded(ToyScorer):
    """Remembers how many prompts were scored at once."""

    now: list[int] = field(default_factory=list, compare=False)
    most: list[int] = field(default_factory=list, compare=False)
    lengths: list[int] = field(default_factory=list, compare=False)

    async def score(self, tokens: Sequence[int]) -> Scored:
        self.now.append(1)
        self.lengths.append(len(tokens) - 1)
        self.most.append(len(self.now))
        await asyncio.sleep(0)
        self.now.pop()
        return await super().score(tokens)


async def test_few_prompts_are_scored_at_once_because_their_log_probabilities_need_memory() -> None:
    model = Crowded()
    await record(model, Suite(documents=6, positions=16, concurrency=32), model="m", version="1", key="k")
    assert max(model.most) == 2


@pytest.mark.parametrize(
    ("positions", "pieces", "length"), [(128, 1, 128), (256, 1, 256), (257, 2, 129), (600, 3, 200)]
)
async def test_a_prompt_is_never_longer_than_a_chunk_however_many_positions_are_asked_for(
    positions: int, pieces: int, length: int
) -> None:
    model = Crowded()
    reference, _ = await record(model, Suite(4, positions, 4), model="m", version="1", key="k")
    assert max(model.lengths) == length <= CHUNK
    assert reference.documents == 4 * pieces
    assert sum(len(window.scored) for window in reference.windows[: reference.documents]) >= 4 * positions
