"""What the quality gate found, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autotune.load.report import Estimate


class QualityVerdict(StrEnum):
    """Outcome of a gate. `undecided` passes the search but not the recommendation."""

    PASSED = "passed"
    FAILED = "failed"
    UNDECIDED = "undecided"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class QualityCheck:
    """One statistic against its limit.

    Attributes:
        tier: 0 sanity, 1 divergence, 2 tasks, 3 the user's command.
        name: such as `kl`, `perplexity`, `agreement`, `kl[4k]`.
        estimate: the figure with its interval.
        limit: the limit it is held against.
        noise: the noise floor of the same statistic.
        verdict: the result of this statistic.
        note: one sentence for the reader.
    """

    tier: int
    name: str
    estimate: Estimate
    limit: float
    noise: float
    verdict: QualityVerdict
    note: str = ""


@dataclass(frozen=True, slots=True)
class QualityReport:
    """The gate's verdict on one precision key.

    Attributes:
        violation: 0 where the gate passes, else how far beyond the limit, as a share of the limit.
        precision_key: hash of what may change answers (weights, KV dtype, layout, backend, speculation, version).
        cached: taken from an earlier trial with the same key.
    """

    verdict: QualityVerdict
    checks: tuple[QualityCheck, ...]
    violation: float
    precision_key: str
    seconds: float
    cached: bool = False
