"""What people read."""

from __future__ import annotations

from dataclasses import replace

from autotune.load.report import Estimate
from autotune.quality.report import QualityCheck, QualityReport, QualityVerdict
from autotune.quality.wording import evidence

KL = QualityCheck(1, "kl", Estimate(0.0012, 0.0009, 0.0016, 3072), 0.02, 0.0002, QualityVerdict.PASSED)
PERPLEXITY = QualityCheck(1, "perplexity", Estimate(0.001, -0.002, 0.004, 3072), 0.01, 0.0, QualityVerdict.PASSED)
SANE = QualityCheck(0, "finite", Estimate(1, 1, 1, 1), 1, 0, QualityVerdict.PASSED)


def report(verdict: QualityVerdict, *checks: QualityCheck) -> QualityReport:
    return QualityReport(verdict, checks, 0.0, "key", 1.0)


def test_a_pass_is_told_with_its_intervals() -> None:
    text = evidence(report(QualityVerdict.PASSED, SANE, KL, PERPLEXITY))
    assert text == (
        "answers as good as the baseline's: KL 0.0012 (0.0009 to 0.0016) nats per token while reading, limit 0.02, "
        "noise 0.0002; perplexity +0.10% (-0.20% to +0.40%)"
    )


def test_every_length_of_context_is_told() -> None:
    decode, long = replace(KL, name="kl[decode]"), replace(KL, name="kl[16k]")
    text = evidence(report(QualityVerdict.PASSED, decode, long))
    assert "nats per token while writing" in text
    assert "nats per token after 16k tokens" in text


def test_a_failure_names_the_checks_that_failed() -> None:
    broken = QualityCheck(0, "template", Estimate(0, 0, 0, 1), 1, 0, QualityVerdict.FAILED, "renders differently")
    assert evidence(report(QualityVerdict.FAILED, KL, broken)) == "answers got worse: template: renders differently"


def test_an_open_verdict_names_what_is_open() -> None:
    opened = QualityCheck(1, "kl", Estimate(0.02, 0.01, 0.03, 100), 0.02, 0.0, QualityVerdict.UNDECIDED)
    assert evidence(report(QualityVerdict.UNDECIDED, opened)).startswith("not decided (kl straddle")
