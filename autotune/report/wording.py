"""How configurations, figures and outcomes are put into words; the same everywhere."""

from __future__ import annotations

import math

from autotune.load.report import Estimate
from autotune.outcome import Broken, Infeasible, Measured, Outcome
from autotune.space.config import EngineConfig, FrozenValue
from autotune.space.defaults import real_changes

_UNITS = {"ms": "ms", "rps": "req/s"}


def value_text(value: FrozenValue) -> str:
    """An argument value as a person would write it."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(value_text(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def changes_text(config: EngineConfig, baseline: EngineConfig, *, limit: int = 0) -> str:
    """What differs from the baseline, such as ``max_num_seqs=256 quantization=fp8``; `limit` characters at most."""
    changes = real_changes(config, baseline)
    text = " ".join(f"{change.name}={value_text(change.after)}" for change in changes) or "as the baseline"
    return text if not limit or len(text) <= limit else text[: limit - 1] + "…"


def metric_unit(key: str) -> str:
    """The unit of a metric key."""
    if key.endswith("_ms"):
        return "ms"
    if key.startswith(("output_throughput", "total_throughput")):
        return "tok/s"
    return "req/s" if key in ("request_throughput", "goodput") else ""


def figure_text(key: str, estimate: Estimate | None, *, interval: bool = True) -> str:
    """A figure with its unit and 95 % interval: ``5346 [5310, 5388] tok/s``."""
    if estimate is None:
        return "–"
    text = number_text(estimate.value)
    if interval and estimate.high > estimate.low:
        text += f" [{number_text(estimate.low)}, {number_text(estimate.high)}]"
    return f"{text} {metric_unit(key)}".rstrip()


def number_text(value: float) -> str:
    """Three to four significant digits, without exponents."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def duration_text(seconds: float) -> str:
    """``45 s``, ``3 min 20 s``, ``2 h 05 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def outcome_text(outcome: Outcome) -> str:
    """One word or a short phrase."""
    match outcome:
        case Measured(quality=quality) if quality is not None and quality.verdict == "failed":
            return "measured, fails quality"
        case Measured():
            return "measured"
        case Infeasible(cause=cause):
            return f"infeasible: {cause}"
        case Broken(cause=cause):
            return f"broken: {cause}"


_LATENCY_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E latency", "stall": "Longest stall"}


def metric_title(key: str) -> str:
    """A metric key as a heading, such as ``TTFT p95`` for ``ttft_p95_ms``."""
    first, _, rest = key.removesuffix("_ms").partition("_")
    if key.endswith("_ms") and first in _LATENCY_NAMES:
        return f"{_LATENCY_NAMES[first]} {rest}".removesuffix(" max")
    return key.replace("_", " ").capitalize()


def ratio_text(ratio: float, low: float | None = None, high: float | None = None) -> str:
    """``×1.44 [1.40, 1.48]``; above 1 is better. An interval from one round has no end and is left out."""
    known = low is not None and high is not None and math.isfinite(high)
    return f"×{ratio:.2f} [{low:.2f}, {high:.2f}]" if known else f"×{ratio:.2f}"


def lower_first(title: str) -> str:
    """A title inside a sentence: ``output throughput``, but ``TTFT p95``."""
    return title if title[:2].isupper() or title[1:2].isdigit() else title[:1].lower() + title[1:]


def count_text(count: int, noun: str, plural: str = "") -> str:
    """``1 trial``, ``3 trials``."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
