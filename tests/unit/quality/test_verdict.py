"""Pass, fail, undecided, and by how much."""

from __future__ import annotations

import pytest

from autotune.load.report import Estimate
from autotune.quality.divergence import Divergence
from autotune.quality.reference import Noise
from autotune.quality.report import QualityCheck, QualityVerdict
from autotune.quality.verdict import Limits, divergence_checks, judge, verdict_of, violation_of
from autotune.spec.study import QualitySpec

LIMITS = Limits.of(QualitySpec())


def documents(
    kl: float, *, loss: float = 0.0, apart: int = 0, count: int = 24, spread: float = 0.1
) -> list[Divergence]:
    """Documents of 100 positions, 90 of them sure."""
    scale = [1 + spread * (2 * index / (count - 1) - 1) for index in range(count)]
    return [Divergence("short", 100, 100 * kl * s, 100 * loss * s, 90, 90 - apart, 0.0, kl * 3) for s in scale]


def check(checks: list[QualityCheck], name: str) -> QualityCheck:
    return next(item for item in checks if item.name == name)


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(0.0, 0.01, "passed"), (0.01, 0.03, "undecided"), (0.021, 0.03, "failed")]
)
def test_the_whole_interval_decides(low: float, high: float, verdict: str) -> None:
    assert judge(Estimate((low + high) / 2, low, high, 10), 0.02) == verdict


def test_not_a_number_fails() -> None:
    nan = float("nan")
    assert judge(Estimate(nan, nan, nan, 10), 0.02) is QualityVerdict.FAILED


def test_a_small_divergence_passes_everywhere() -> None:
    checks = divergence_checks(documents(0.004), documents(0.004), {}, LIMITS)
    assert verdict_of(checks) is QualityVerdict.PASSED
    assert violation_of(checks) == 0


def test_a_large_divergence_fails_and_tells_how_far() -> None:
    checks = divergence_checks(documents(0.06), [], {}, LIMITS)
    assert check(checks, "kl").verdict is QualityVerdict.FAILED
    assert violation_of(checks) == pytest.approx(2.0, rel=0.05)


def test_perplexity_is_one_sided() -> None:
    better = divergence_checks(documents(0.004, loss=-0.05), [], {}, LIMITS)
    worse = divergence_checks(documents(0.004, loss=0.05), [], {}, LIMITS)
    assert check(better, "perplexity").verdict is QualityVerdict.PASSED
    assert check(worse, "perplexity").verdict is QualityVerdict.FAILED
    assert check(worse, "perplexity").estimate.value == pytest.approx(0.0513, rel=0.01)


def test_agreement_fails_where_first_tokens_change() -> None:
    checks = divergence_checks(documents(0.004, apart=9), [], {}, LIMITS)
    assert check(checks, "agreement").estimate.value == pytest.approx(0.9)
    assert check(checks, "agreement").verdict is QualityVerdict.FAILED
    assert violation_of(checks) == pytest.approx(0.1 / 0.02 - 1)


def test_no_limit_is_tighter_than_three_times_the_noise() -> None:
    noise = {"prefill": Noise(kl=0.03)}
    checks = divergence_checks(documents(0.05), [], noise, LIMITS)
    assert check(checks, "kl").limit == pytest.approx(0.09)
    assert check(checks, "kl").verdict is QualityVerdict.PASSED
    assert check(checks, "kl").noise == 0.03


def test_one_broken_text_among_good_ones_fails() -> None:
    broken = [*documents(0.0001, count=23), Divergence("short", 100, 40.0, 0.0, 90, 90, 0.0, 1.0)]
    assert check(divergence_checks(broken, [], {}, LIMITS), "worst_document").verdict is QualityVerdict.FAILED


def test_long_contexts_are_shown_on_their_own() -> None:
    traces = [Divergence("decode", 50, 0.05, 0, 40, 40, 0, 0), Divergence("16k", 16, 3.2, 0, 15, 15, 0, 0)]
    checks = divergence_checks([], traces, {}, LIMITS)
    assert check(checks, "kl[decode]").verdict is QualityVerdict.PASSED
    assert check(checks, "kl[16k]").verdict is QualityVerdict.FAILED
