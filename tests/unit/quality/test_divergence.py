"""The statistics against values computed by hand or by brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.quality.answers import TOP, Scored, scored_of
from autotune.quality.divergence import Divergence, divergence, statistics
from autotune.student import small_sample_factor


def scored(*rows: dict[int, float], targets: tuple[int, ...] | None = None) -> Scored:
    """Rows of probabilities."""
    logs = [{token: math.log(share) for token, share in row.items()} for row in rows]
    return scored_of(logs, targets or tuple(next(iter(row)) for row in rows))


def random_scored(seed: int, positions: int = 40, vocabulary: int = 100) -> tuple[Scored, np.ndarray]:
    logits = 2 * np.random.default_rng(seed).standard_normal((positions, vocabulary))
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    order = np.argsort(-logs, axis=1)[:, :TOP]
    return Scored(logs[:, 0], order, np.take_along_axis(logs, order, axis=1)), logs


def test_kl_of_two_known_distributions() -> None:
    found = divergence(scored({1: 0.5, 2: 0.3, 3: 0.2}), scored({1: 0.25, 2: 0.55, 3: 0.2}))
    assert found.kl == pytest.approx(0.5 * math.log(2) + 0.3 * math.log(0.3 / 0.55), rel=1e-4)
    assert found.loss == pytest.approx(math.log(2))
    assert (found.sure, found.agreed) == (1, 0)


def test_what_only_one_side_lists_goes_into_the_tail() -> None:
    # Shared is token 1 alone: 0.5 against 0.4, and 0.5 against 0.6 elsewhere.
    found = divergence(scored({1: 0.5, 2: 0.3}), scored({1: 0.4, 9: 0.5}))
    assert found.kl == pytest.approx(0.5 * math.log(0.5 / 0.4) + 0.5 * math.log(0.5 / 0.6))
    assert found.tail == pytest.approx(0.1)


def test_an_engine_does_not_differ_from_itself() -> None:
    one, _ = random_scored(1)
    found = divergence(one, one)
    assert found.kl == pytest.approx(0, abs=1e-12)
    assert found.loss == 0
    assert found.sure == found.agreed > 0


@pytest.mark.parametrize("seed", range(20))
def test_the_bucketed_kl_is_a_lower_bound_of_the_full_one(seed: int) -> None:
    one, full_one = random_scored(seed)
    other_logits = full_one + 0.3 * np.random.default_rng(1000 + seed).standard_normal(full_one.shape)
    full_other = other_logits - np.log(np.exp(other_logits).sum(axis=1, keepdims=True))
    order = np.argsort(-full_other, axis=1)[:, :TOP]
    other = Scored(full_other[:, 0], order, np.take_along_axis(full_other, order, axis=1))
    full = float((np.exp(full_one) * (full_one - full_other)).sum())
    found = divergence(one, other).kl
    assert 0.5 * full < found <= full


def test_a_close_pair_is_not_held_against_the_candidate() -> None:
    found = divergence(scored({1: 0.41, 2: 0.40}), scored({2: 0.41, 1: 0.40}))
    assert found.sure == 0


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="1 reference positions, but 2"):
        divergence(scored({1: 1.0}), scored({1: 1.0}, {1: 1.0}))


def test_nothing_compared_is_an_error() -> None:
    with pytest.raises(ValueError, match="no position"):
        statistics([])


def test_few_documents_give_wider_intervals_than_many() -> None:
    def sample(count: int) -> float:
        values = np.random.default_rng(3).gamma(2.0, 0.005, count)
        found = statistics([Divergence("short", 100, 100 * v, 0, 90, 90, 0, v) for v in values])
        return found.kl.high - found.kl.low

    assert sample(4) > 2 * sample(64)


@pytest.mark.parametrize(("documents", "t"), [(4, 3.182), (6, 2.571), (12, 2.201), (24, 2.069)])
def test_the_widening_follows_students_t(documents: int, t: float) -> None:
    expected = math.sqrt(documents / (documents - 1)) * t / 1.95996
    assert small_sample_factor(documents) == pytest.approx(expected, rel=0.01)


def test_intervals_cover_the_truth() -> None:
    """A 95 % interval over 12 documents covers the true mean in nine of ten draws at least."""
    generator = np.random.default_rng(5)
    hits = 0
    for _ in range(200):
        values = generator.gamma(4.0, 0.0025, 12)
        found = statistics([Divergence("short", 50, 50 * v, 0, 45, 45, 0, v) for v in values]).kl
        hits += found.low <= 0.01 <= found.high
    assert hits >= 180
