"""The measured figures that thresholds are made of."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.errors import SpecError
from autotune.export.values import ExportInput, Measure

TOLERANCE = 1.5
"""An alert fires beyond this multiple of the upper end of a measured interval."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One server at the highest load that was measured. Times are seconds, rates are per second.

    Attributes:
        concurrency: requests in flight.
        ttft_p95: upper end of its interval.
        tpot_p95: upper end of its interval.
        e2e_p95: upper end of its interval.
        output_tokens: lower end of the output throughput.
        requests: lower end of the request throughput.
        level: the load in words.
    """

    concurrency: int
    ttft_p95: float
    tpot_p95: float
    e2e_p95: float
    output_tokens: float
    requests: float
    level: str


def figures_of(recommendation: ExportInput) -> Figures:
    """The figures of the highest level.

    Raises:
        SpecError: the configuration was not measured, so that there is no figure to make a threshold of.
    """
    measures = recommendation.evidence.measures
    if not measures:
        raise SpecError("this configuration has no measured figures, so there are no thresholds to write",
                        hint="pick a trial that was measured (--pick trial:N); `autotune show` lists them")  # fmt: skip
    level = max((measure.level for measure in measures), key=lambda one: one.value)
    found = {measure.key: measure for measure in measures if measure.level == level}
    requests = _low(found.get("request_throughput"))
    e2e = _high(found.get("e2e_p95_ms")) / 1000
    # In an open loop the requests in flight follow from rate and time (Little's law).
    in_flight = level.value if level.kind == "closed" else max(level.value * e2e, 1.0)
    return Figures(
        concurrency=max(math.ceil(in_flight), 1),
        ttft_p95=_high(found.get("ttft_p95_ms")) / 1000,
        tpot_p95=_high(found.get("tpot_p95_ms")) / 1000,
        e2e_p95=e2e,
        output_tokens=_low(found.get("output_throughput")),
        requests=requests,
        level=str(level),
    )


def rounded(value: float) -> float:
    """Three digits are what a measurement carries."""
    return float(f"{value:.3g}")


def _high(measure: Measure | None) -> float:
    return measure.estimate.high if measure is not None else 0.0


def _low(measure: Measure | None) -> float:
    return measure.estimate.low if measure is not None else 0.0
