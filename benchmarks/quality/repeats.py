"""Repeated runs: how often the whole gate catches a damage of a given size.

A round is a start of the engine of its own with the good weights: the gate judges these first (a false alarm would show
here), then copies of the weights with noise of several sizes, drawn anew in every round and loaded into the running
engine one after the other. That loading is as good as starting is shown on `CHECKED_STARTS`: engines started on the
copy itself. What is counted is the verdict of the code that a study runs (`candidate_checks`), with all texts where the
first ones do not decide.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.quality.answers import Scored
from autotune.quality.candidate import candidate_checks
from autotune.quality.observe import Suite
from autotune.quality.reference import Reference
from autotune.quality.report import QualityCheck, QualityVerdict
from autotune.quality.verdict import Limits, verdict_of
from autotune.quality.wire import HttpScorer
from autotune.spec.study import QualitySpec

SIZES = (0.0, 0.06, 0.1, 0.14, 0.2, 1.0, 2.0)
"""Standard deviations of noise; 0 is the good weights."""
ROUNDS = 6
CHECKED_STARTS = ((0.14, 0), (0.2, 1))
"""(size, round) of the copies on which an engine is started, too."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One run of the gate.

    Attributes:
        size: standard deviations of noise on the weights of one layer, 0 for none.
        round: which start of the engine; also the seed of the noise.
        started: the engine was started on the damaged copy, not given its weights afterwards.
        verdict: what the gate says.
        kl: mean KL while reading and its 95 % interval, nats per token.
        decode_kl: mean KL while writing, nats per token.
        perplexity: relative change of the perplexity.
        agreement: share of equal first tokens where the reference is sure.
        texts: fixed texts that it needed.
        accuracy: share of positions at which the likeliest token is the text's own next one.
        accuracy_before: the same of the reference.
        seconds: how long it took.
    """

    size: float
    round: int
    started: bool
    verdict: str
    kl: tuple[float, float, float]
    decode_kl: float
    perplexity: float
    agreement: float
    texts: int
    accuracy: float
    accuracy_before: float
    seconds: float

    @property
    def name(self) -> str:
        """Unique among all runs."""
        return f"{self.size:g} {self.round} {'started' if self.started else 'loaded'}"


class Remembering(HttpScorer):
    """Keeps what was scored, for the accuracy on the same positions."""

    def __init__(self, url: str, model: str, api_key: str) -> None:
        super().__init__(url, model, api_key)
        self.seen: dict[tuple[int, ...], Scored] = {}

    async def score(self, tokens: Sequence[int]) -> Scored:
        found = await super().score(tokens)
        self.seen[tuple(tokens)] = found
        return found


async def judged(
    scorer: Remembering, reference: Reference, suite: Suite, size: float, round_: int, *, started: bool
) -> Verdict:
    """Run the gate once on what the engine holds now."""
    begin = time.monotonic()
    scorer.seen.clear()
    checks = await candidate_checks(scorer, reference, suite, Limits.of(QualitySpec()))
    named = {check.name: check for check in checks}
    kl = named["kl"].estimate
    windows = [window for window in reference.windows[: reference.documents] if window.tokens in scorer.seen]
    return Verdict(
        size, round_, started, verdict_of(checks).value, (kl.value, kl.low, kl.high), _value(named, "kl[decode]"),
        _value(named, "perplexity"), _value(named, "agreement"),
        sum(window.tokens in scorer.seen for window in reference.windows),
        accuracy([window.tokens for window in windows], [scorer.seen[window.tokens] for window in windows]),
        accuracy([window.tokens for window in windows], [window.scored for window in windows]),
        time.monotonic() - begin,
    )  # fmt: skip


def _value(checks: dict[str, QualityCheck], name: str) -> float:
    return checks[name].estimate.value


def accuracy(tokens: Sequence[Sequence[int]], scored: Sequence[Scored]) -> float:
    """Share of positions at which the likeliest token is the one that stands there."""
    hits = [item.ids[:, 0] == np.array(text[1:]) for text, item in zip(tokens, scored, strict=True)]
    return float(np.concatenate(hits).mean())


def counted(runs: Sequence[Verdict], *wanted: QualityVerdict) -> int:
    """How many runs ended with one of these verdicts."""
    return sum(run.verdict in wanted for run in runs)


def missing(runs: Sequence[Verdict], round_: int) -> list[float]:
    """Sizes that this round has not judged yet."""
    done = {run.size for run in runs if run.round == round_ and not run.started}
    return [size for size in SIZES if size not in done]


def unstarted(runs: Sequence[Verdict]) -> list[tuple[float, int]]:
    """Copies on which no engine was started yet."""
    done = {(run.size, run.round) for run in runs if run.started}
    return [item for item in CHECKED_STARTS if item not in done]
