"""The evidence as text: a comment at the top of every exported file."""

from __future__ import annotations

from collections.abc import Iterable

from autotune.export.values import Evidence, ExportInput, Measure
from autotune.report.wording import changes_text, figure_text, metric_title

SHOWN = (
    "output_throughput",
    "total_throughput",
    "request_throughput",
    "goodput",
    "ttft_p50_ms",
    "ttft_p95_ms",
    "ttft_p99_ms",
    "tpot_p50_ms",
    "tpot_p95_ms",
    "itl_p95_ms",
    "e2e_p95_ms",
)
"""Metrics that are worth a line."""
_WIDTH = 110


def evidence_lines(recommendation: ExportInput) -> tuple[str, ...]:
    """Study, trials, claim, intervals, quality, version and date, one sentence a line, wrapped for a terminal."""
    evidence = recommendation.evidence
    return tuple(line for text in _sentences(recommendation, evidence) for line in _wrapped(_one_line(text)))


def comment(recommendation: ExportInput, mark: str = "#") -> str:
    """The evidence as a comment block that ends with a new line."""
    return "".join(f"{mark} {line}".rstrip() + "\n" for line in evidence_lines(recommendation))


def measure_text(measure: Measure) -> str:
    """``TTFT p95 291 [282, 304] ms at c=16``."""
    return f"{metric_title(measure.key)} {figure_text(measure.key, measure.estimate)} at {measure.level}"


def _sentences(recommendation: ExportInput, evidence: Evidence) -> Iterable[str]:
    numbers = ", ".join(map(str, evidence.trials))
    trials = f"trial{'s' if len(evidence.trials) > 1 else ''} {numbers}" if evidence.trials else "no trial of its own"
    day = evidence.date or "at an unknown date"
    yield f"Exported by autotune from study {evidence.study!r} ({trials}), measured {day}."
    if evidence.simulated:
        yield "SIMULATED: the engine was a simulator. These figures are no measurements of a GPU; confirm before use."
    yield from (f"WARNING: {text}" for text in evidence.warnings)
    version = evidence.vllm_version or "unknown"
    hardware = f" Hardware: {evidence.hardware}." if evidence.hardware else ""
    yield f"Model {recommendation.model}. vLLM {version}.{hardware}"
    yield f"Claim: {evidence.claim}"
    for label, ratio, low, high in evidence.gains:
        yield f"  {label}: better by x{ratio:.3f} [{low:.3f}, {high:.3f}] (below 1 is worse)"
    for measure in evidence.measures:
        yield f"Measured: {measure_text(measure)}"
    if evidence.measures:
        yield (
            f"Figures are geometric means of {evidence.starts} fresh starts, brackets span their 95 % intervals."
            if evidence.starts
            else "Figures are those of one trial of the search; brackets are 95 % intervals."
        )
    yield f"Quality: {evidence.quality or 'no quality gate'}."
    changed = changes_text(recommendation.config, recommendation.baseline)
    yield f"Against the baseline: {changed or 'nothing changes'}"
    yield from (f"Worth of {name}: {sentence}" for name, sentence in evidence.effects)
    yield from (f"Note: {note}" for note in recommendation.notes)
    yield f"Repeat with: autotune run {evidence.study_file}"


def _one_line(text: str) -> str:
    """No line break or control character may end a comment early."""
    return " ".join("".join(c if c.isprintable() or c.isspace() else "?" for c in text).split()) if text.strip() else ""


def _wrapped(text: str) -> Iterable[str]:
    line = ""
    for word in text.split(" "):
        if line and len(line) + 1 + len(word) > _WIDTH:
            yield line
            line = "  " + word
        else:
            line = f"{line} {word}" if line else word
    yield line
