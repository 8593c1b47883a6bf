"""vLLM's newer hooks: found by trying them, used where they answer rightly, done without everywhere else."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from autotune.quality import hookwire
from autotune.quality.answers import ScorerError
from autotune.quality.divergence import divergence
from autotune.quality.hooks import Hooks, find_hooks
from autotune.quality.observe import Suite, observe, record
from autotune.quality.report import QualityReport
from autotune.quality.wire import HttpScorer
from autotune.testing.toy_scorer import ToyScorer
from autotune.testing.toy_server import ToyEngine, serving
from tests.unit.quality.test_gate import BASELINE, OTHER, gate

BOTH = ("ids", "replay")
TEXT = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8)
SUITE = Suite(documents=4, positions=16, concurrency=4)


def scorer_of(engine: ToyEngine) -> HttpScorer:
    return HttpScorer(engine.url, engine.served_model, engine.api_key)


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (ToyScorer(), Hooks()),
        (ToyScorer(hooks=("ids",)), Hooks(by_ids=True)),
        (ToyScorer(hooks=("replay",)), Hooks(replay=True)),
        (ToyScorer(hooks=BOTH), Hooks(by_ids=True, replay=True)),
        (ToyScorer(hooks=BOTH, noise=0.01), Hooks(by_ids=True, replay=True)),
        (ToyScorer(hooks=BOTH, shifted=True), Hooks(replay=True)),
    ],
)
async def test_a_hook_is_found_by_its_answers(model: ToyScorer, found: Hooks) -> None:
    async with serving(model) as engine, scorer_of(engine) as scorer:
        assert await find_hooks(scorer, TEXT) == found


async def test_a_server_that_is_gone_is_not_taken_for_one_without_hooks() -> None:
    with pytest.raises(ScorerError, match="refused"):
        await find_hooks(ToyScorer(dead=True), TEXT)


async def test_given_ids_are_scored_whatever_their_rank_and_the_likeliest_token_is_known() -> None:
    reference, model = await ToyScorer().score(TEXT), ToyScorer(damage=0.8, hooks=BOTH)
    async with serving(model) as engine, scorer_of(engine) as scorer:
        by_ids = await scorer.score_ids(TEXT, reference.ids)
        top = await scorer.score(TEXT)
    for row, wanted in zip(by_ids.ids, reference.ids, strict=True):
        assert set(wanted) <= set(row)
    assert by_ids.ids[:, 0].tolist() == top.ids[:, 0].tolist()
    assert np.allclose(by_ids.target, top.target, atol=1e-4)


async def test_the_divergence_on_exactly_the_references_tokens_misses_nothing_of_them() -> None:
    """What fell out of the candidate's own top tokens hides in the tail bucket, and there its loss cannot be seen."""
    reference, model = await ToyScorer().score(TEXT * 8), ToyScorer(damage=2.0, hooks=BOTH)
    by_top = divergence(reference, await model.score(TEXT * 8))
    exact = divergence(reference, await model.score_ids(TEXT * 8, reference.ids))
    assert exact.kl > 1.02 * by_top.kl
    assert exact.agreed == by_top.agreed
    assert exact.loss >= by_top.loss


async def test_a_text_is_replayed_in_one_request_and_gives_what_following_it_gives() -> None:
    plain, able = ToyScorer(damage=0.3), ToyScorer(damage=0.3, hooks=BOTH)
    reference, _ = await record(ToyScorer(), SUITE, model="m", version="1", key="k")
    async with serving(plain) as slow, serving(able) as fast, scorer_of(slow) as a, scorer_of(fast) as b:
        followed, replayed = await observe(a, reference, 4), await observe(b, reference, 4)
    asked = Counter(fast.requests)
    assert followed.hooks == Hooks() and replayed.hooks == Hooks(True, True)
    assert asked[hookwire.PATH] == 2 + reference.documents + len(reference.traces), "two probes, then one request each"
    assert asked["/v1/completions"] == 1, "the probe is held against prompt_logprobs"
    assert slow.requests.count("/v1/completions") > reference.documents + len(reference.traces)
    for one, other in zip(followed.traces, replayed.traces, strict=True):
        assert other.positions >= one.positions
    complete = [(one, other) for one, other in zip(followed.traces, replayed.traces, strict=True)
                if one.positions == other.positions]  # fmt: skip
    assert complete
    assert all(one.kl == pytest.approx(other.kl, rel=1e-3) for one, other in complete)


def notes(report: QualityReport) -> dict[str, str]:
    return {check.name: check.note for check in report.checks}


@pytest.mark.parametrize("hooks", [(), BOTH])
async def test_the_verdict_is_the_same_with_and_without_hooks_and_says_which(
    hooks: tuple[str, ...], tmp_path: Path
) -> None:
    judge = gate()
    async with serving(ToyScorer(hooks=hooks)) as engine:
        assert (await judge.check(engine, BASELINE, tmp_path)).verdict == "passed"
    async with serving(ToyScorer(hooks=hooks, damage=0.8)) as engine:
        report = await judge.check(engine, OTHER, tmp_path)
    assert report.verdict == "failed"
    assert ("exactly the baseline's tokens" in notes(report)["kl"]) == bool(hooks)
    assert ("replayed" in notes(report)["kl[decode]"]) == bool(hooks)


async def test_a_reference_without_hooks_judges_an_engine_with_them(tmp_path: Path) -> None:
    judge = gate()
    async with serving(ToyScorer()) as engine:
        await judge.check(engine, BASELINE, tmp_path)
    async with serving(ToyScorer(hooks=BOTH)) as engine:
        assert (await judge.check(engine, OTHER, tmp_path)).verdict == "passed"


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ({}, "no prompt_logprobs"),
        ({"prompt_logprobs": [None, {}], "prompt_token_id_logprobs": None}, "no scores of the given ids"),
        ({"prompt_logprobs": [None, {}], "prompt_token_id_logprobs": "AAAA"}, "no scores of the given ids"),
    ],
)
def test_an_answer_of_another_form_counts_as_a_refusal(document: dict[str, object], complaint: str) -> None:
    with pytest.raises(ScorerError, match=complaint) as caught:
        hookwire.scored_ids(document, (1, 2), np.array([[4, 5]]))
    assert caught.value.refused


def test_a_replay_of_before_0_32_names_tokens_in_words() -> None:
    content = [{"token": "token_id:7", "logprob": -0.5, "top_logprobs": [{"token": "token_id:9", "logprob": -1.0}]}]
    choice = {"token_ids": [7], "logprobs": {"content": content}, "finish_reason": "length"}
    assert hookwire.replayed({"choices": [choice]}).scored.ids[0, :2].tolist() == [7, 9]
