"""How far two engines are apart on the same text: the statistics and their intervals. Pure arithmetic on arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.load.report import Estimate
from autotune.quality.answers import ABSENT, Scored
from autotune.quality.arrays import Flags, Ids, Reals
from autotune.student import small_sample_factor

SURE_MARGIN = 0.25
"""Nats between the reference's first and second token from which it counts as sure. Batch shapes move log-probabilities
by up to 0.06 nat, and half precision prints log-probabilities in steps of 1/8 near -14: a closer pair may flip."""
REPLICATES = 4000
_FLOOR = 1e-6


@dataclass(frozen=True, slots=True)
class Divergence:
    """One document: sums over its positions, so that documents can be resampled.

    Attributes:
        bucket: which length of context it stands for.
        positions: number of compared positions.
        kl: sum of KL(reference || candidate), nats.
        loss: sum of (reference - candidate) log-probability of the text, nats; above 0 the candidate is worse.
        sure: positions at which the reference is sure.
        agreed: those of them at which both prefer the same token.
        tail: sum of (candidate - reference) probability outside the reference's top tokens.
        worst: largest KL of one position, nats.
    """

    bucket: str
    positions: int
    kl: float
    loss: float
    sure: int
    agreed: int
    tail: float
    worst: float


def divergence(reference: Scored, candidate: Scored, bucket: str = "short") -> Divergence:
    """Compare two scorings of the same positions.

    KL is taken over the reference's top tokens that the candidate lists too, and one bucket for everything else.
    Merging outcomes can only lower a KL divergence (data processing inequality): this is a lower bound of the true one.

    Raises:
        ValueError: the lengths differ.
    """
    if len(reference) != len(candidate):
        raise ValueError(f"{len(reference)} reference positions, but {len(candidate)} candidate positions")
    if not len(reference):
        return Divergence(bucket, 0, 0.0, 0.0, 0, 0, 0.0, 0.0)
    per_position, tail = _kl(reference, candidate)
    margin = reference.logprobs[:, 0] - reference.logprobs[:, 1]
    sure = margin > SURE_MARGIN
    same = reference.ids[:, 0] == candidate.ids[:, 0]
    return Divergence(
        bucket,
        len(reference),
        float(per_position.sum()),
        float((reference.target - candidate.target).sum()),
        int(sure.sum()),
        int((sure & same).sum()),
        float(tail.sum()),
        float(per_position.max()),
    )


def _kl(reference: Scored, candidate: Scored) -> tuple[Reals, Reals]:
    """KL per position, and how much more probability the candidate puts outside the shared tokens."""
    matches: Flags = (reference.ids[:, :, None] == candidate.ids[:, None, :]) & (reference.ids[:, :, None] != ABSENT)
    shared = matches.any(axis=2)
    where: Ids = matches.argmax(axis=2)
    log_q = np.where(shared, np.take_along_axis(candidate.logprobs, where, axis=1), 0.0)
    log_p = np.where(shared, reference.logprobs, 0.0)
    p = np.where(shared, np.exp(log_p), 0.0)
    q = np.where(shared, np.exp(log_q), 0.0)
    rest_p = np.maximum(1.0 - p.sum(axis=1), _FLOOR)
    rest_q = np.maximum(1.0 - q.sum(axis=1), _FLOOR)
    inside = (p * (log_p - log_q)).sum(axis=1)
    total = inside + rest_p * np.log(rest_p / rest_q)
    return np.maximum(total, 0.0), rest_q - rest_p


@dataclass(frozen=True, slots=True)
class Statistics:
    """The figures of one comparison with 95 % intervals over documents.

    Attributes:
        kl: mean KL divergence, nats per token.
        loss: mean loss of log-probability, nats per token: the logarithm of the perplexity ratio.
        agreement: share of equal first tokens where the reference is sure.
        tail: mean drift of the probability outside the top tokens.
        worst_document: largest mean KL of a document, nats per token.
    """

    kl: Estimate
    loss: Estimate
    agreement: Estimate
    tail: Estimate
    worst_document: float


def statistics(documents: Sequence[Divergence]) -> Statistics:
    """Means over all positions, resampled by document: positions of one document are alike.

    Raises:
        ValueError: nothing was compared.
    """
    used = [item for item in documents if item.positions]
    if not used:
        raise ValueError("no position was compared")
    resampled = _resamples(len(used))
    positions = np.array([item.positions for item in used], float)
    sure = np.array([item.sure for item in used], float)
    count = int(positions.sum())

    def mean(values: Sequence[float]) -> Estimate:
        return ratio(np.array(values, float), positions, resampled, count)

    agreed = np.array([item.agreed for item in used], float)
    agreement = ratio(agreed, sure, resampled, int(sure.sum())) if sure.sum() else Estimate(1.0, 1.0, 1.0, 0)
    return Statistics(
        _clipped(mean([item.kl for item in used]), 0.0, math.inf),
        mean([item.loss for item in used]),
        _clipped(agreement, 0.0, 1.0),
        mean([item.tail for item in used]),
        max(item.kl / item.positions for item in used),
    )


def _clipped(value: Estimate, lowest: float, highest: float) -> Estimate:
    """The widened interval may leave the range of what is possible."""
    return Estimate(value.value, max(lowest, value.low), min(highest, value.high), value.n)


def by_bucket(documents: Sequence[Divergence]) -> Mapping[str, list[Divergence]]:
    """Documents in which something was compared, by bucket, in the order of their first document."""
    found: dict[str, list[Divergence]] = {}
    for item in documents:
        if item.positions:
            found.setdefault(item.bucket, []).append(item)
    return found


def _resamples(count: int) -> Reals:
    """How often each document is drawn, one row per replicate; seeded, so that a report can be repeated."""
    return np.random.default_rng(11).multinomial(count, np.full(count, 1.0 / count), REPLICATES).astype(float)


def ratio(above: Reals, below: Reals, resampled: Reals, samples: int) -> Estimate:
    """sum(above) / sum(below) with an interval over documents.

    Percentile bootstrap, widened about the estimate for few documents (`small_sample_factor`).
    """
    value = float(above.sum() / below.sum())
    if len(above) < 2:
        return Estimate(value, value, value, samples)
    weight = resampled @ below
    draws = (resampled @ above)[weight > 0] / weight[weight > 0]
    low, high = (float(edge) for edge in np.percentile(draws, [2.5, 97.5]))
    wider = small_sample_factor(len(above))
    return Estimate(value, value - wider * max(0.0, value - low), value + wider * max(0.0, high - value), samples)
