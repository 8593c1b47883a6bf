"""Statistics against limits: pass, fail, or undecided, and by how much a limit is broken."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.load.report import Estimate
from autotune.quality.divergence import Divergence, Statistics, by_bucket, statistics
from autotune.quality.reference import Noise
from autotune.quality.report import QualityCheck, QualityVerdict
from autotune.spec.study import QualitySpec

NOISE_FACTOR = 3.0
"""No limit is held tighter than this many times the noise floor: the reference itself would fail."""
WORST_DOCUMENT_FACTOR = 10.0
"""A single document may be this many times the KL limit away; beyond it something breaks on some texts."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The study's limits: KL in nats per token, loss in nats per token (from the perplexity limit), disagreement."""

    kl: float
    loss: float
    disagreement: float

    @staticmethod
    def of(spec: QualitySpec) -> Limits:
        return Limits(spec.kl_limit, math.log1p(spec.perplexity_limit), 1.0 - spec.agreement_limit)


def judge(value: Estimate, limit: float) -> QualityVerdict:
    """The whole interval within the limit passes, the whole interval beyond it fails, anything else is undecided.

    Not-a-number fails: an engine that computed none is broken.
    """
    if math.isnan(value.value):
        return QualityVerdict.FAILED
    if value.high <= limit:
        return QualityVerdict.PASSED
    return QualityVerdict.FAILED if value.low > limit else QualityVerdict.UNDECIDED


def divergence_checks(
    windows: Sequence[Divergence], traces: Sequence[Divergence], noise: Mapping[str, Noise], limits: Limits
) -> list[QualityCheck]:
    """Tier 1 on the reading path (fixed texts) and on the writing path (continuations), by length of context."""
    found: list[QualityCheck] = []
    if any(item.positions for item in windows):
        seen, floor = statistics(windows), noise.get("prefill", Noise())
        found += [_kl("kl", seen, floor, limits), _perplexity(seen, floor, limits), _worst(seen, limits)]
    both = [item for item in (*windows, *traces) if item.positions]
    if both:
        # Of both paths together: few positions are written, and of a rare event few positions tell little.
        worst = noise.get("prefill", Noise()).worst(noise.get("decode", Noise()))
        found.append(_agreement(statistics(both), worst, limits))
    for bucket, documents in by_bucket(traces).items():
        found.append(_kl(f"kl[{bucket}]", statistics(documents), noise.get(bucket, Noise()), limits))
    return found


def _kl(name: str, seen: Statistics, floor: Noise, limits: Limits) -> QualityCheck:
    limit = max(limits.kl, NOISE_FACTOR * floor.kl)
    verdict = judge(seen.kl, limit)
    note = f"mean KL {_interval(seen.kl)} nats per token, limit {limit:.3g}"
    if verdict is QualityVerdict.PASSED and seen.kl.low > max(NOISE_FACTOR * floor.kl, 5e-4):
        note += "; above the noise of repeats, so answers do change"
    return QualityCheck(1, name, seen.kl, limit, floor.kl, verdict, note)


def _perplexity(seen: Statistics, floor: Noise, limits: Limits) -> QualityCheck:
    limit = max(limits.loss, NOISE_FACTOR * floor.loss)
    loss = seen.loss
    grown = Estimate(math.expm1(loss.value), math.expm1(loss.low), math.expm1(loss.high), loss.n)
    note = f"perplexity changes by {grown.value:+.2%} ({grown.low:+.2%} to {grown.high:+.2%})"
    return QualityCheck(
        1, "perplexity", grown, math.expm1(limit), math.expm1(floor.loss), judge(seen.loss, limit), note
    )


def _agreement(seen: Statistics, floor: Noise, limits: Limits) -> QualityCheck:
    share = seen.agreement
    limit = max(limits.disagreement, NOISE_FACTOR * floor.disagreement)
    apart = Estimate(1.0 - share.value, 1.0 - share.high, 1.0 - share.low, share.n)
    note = f"{share.value:.2%} equal first tokens at {share.n} positions where the reference is sure"
    return QualityCheck(1, "agreement", share, 1.0 - limit, 1.0 - floor.disagreement, judge(apart, limit), note)


def _worst(seen: Statistics, limits: Limits) -> QualityCheck:
    value, limit = seen.worst_document, WORST_DOCUMENT_FACTOR * limits.kl
    verdict = QualityVerdict.PASSED if value <= limit else QualityVerdict.FAILED
    note = f"the text that differs most has a mean KL of {value:.3g}"
    return QualityCheck(1, "worst_document", Estimate(value, value, value, 1), limit, 0.0, verdict, note)


def _interval(value: Estimate) -> str:
    return f"{value.value:.2g} ({value.low:.2g} to {value.high:.2g})"


def verdict_of(checks: Sequence[QualityCheck]) -> QualityVerdict:
    """One failed check fails all; one undecided check leaves all undecided; skipped ones do not count."""
    seen = {check.verdict for check in checks}
    for verdict in (QualityVerdict.FAILED, QualityVerdict.UNDECIDED, QualityVerdict.PASSED):
        if verdict in seen:
            return verdict
    return QualityVerdict.SKIPPED


def violation_of(checks: Sequence[QualityCheck]) -> float:
    """How far the worst failed check is beyond its limit, as a share of the limit; 1 for a failed yes-or-no check."""
    return max((_beyond(check) for check in checks if check.verdict is QualityVerdict.FAILED), default=0.0)


def _beyond(check: QualityCheck) -> float:
    if check.tier != 1:
        return 1.0
    value, limit = check.estimate.value, check.limit
    if check.name == "agreement":
        value, limit = 1.0 - value, 1.0 - limit
    return max(value / limit - 1.0, 0.01) if limit > 0 else 1.0
