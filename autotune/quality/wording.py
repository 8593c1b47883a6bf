"""The gate's findings in words: one sentence for reports and exports."""

from __future__ import annotations

from autotune.quality.report import QualityCheck, QualityReport, QualityVerdict


def evidence(report: QualityReport) -> str:
    """One sentence that says what was compared, with intervals, and what follows."""
    failed = [check for check in report.checks if check.verdict is QualityVerdict.FAILED]
    if report.verdict is QualityVerdict.FAILED:
        return "answers got worse: " + "; ".join(f"{check.name}: {check.note or 'failed'}" for check in failed)
    if report.verdict is QualityVerdict.SKIPPED:
        return "answers were not compared"
    shown = [check for check in report.checks if check.tier == 1 and check.name.partition("[")[0] in _SHOWN]
    tasks = [check for check in report.checks if check.tier >= 2]
    parts = [_figure(check) for check in shown] + [f"{check.name}: {check.note}" for check in tasks]
    opened = [check.name for check in report.checks if check.verdict is QualityVerdict.UNDECIDED]
    if report.verdict is QualityVerdict.UNDECIDED:
        return f"not decided ({', '.join(opened)} straddle their limits): " + "; ".join(parts)
    return "answers as good as the baseline's: " + "; ".join(parts)


_SHOWN = ("kl", "perplexity", "agreement")


_PATHS = {"kl": "while reading", "kl[decode]": "while writing"}


def _figure(check: QualityCheck) -> str:
    value = check.estimate
    if check.name.startswith("kl"):
        path = _PATHS.get(check.name) or f"after {check.name[3:-1]} tokens"
        span = f"{value.low:.2g} to {value.high:.2g}"
        return f"KL {value.value:.2g} ({span}) nats per token {path}, limit {check.limit:.2g}, noise {check.noise:.1g}"
    if check.name == "perplexity":
        return f"perplexity {value.value:+.2%} ({value.low:+.2%} to {value.high:+.2%})"
    return f"{value.value:.1%} equal first tokens where the baseline is sure"
