"""Prometheus alert rules whose thresholds are the measured figures."""

from __future__ import annotations

from pathlib import PurePosixPath

from autotune.export.evidence import comment
from autotune.export.operations.figures import TOLERANCE, Figures, figures_of, rounded
from autotune.export.values import ExportFile, ExportInput
from autotune.export.yaml_text import yaml_text

_ENGINE = "vllm:"


class Alerts:
    """Rules for Prometheus; every description says the measured figure."""

    name = "alerts"

    def render(self, recommendation: ExportInput) -> tuple[ExportFile, ...]:
        """One rule file."""
        figures = figures_of(recommendation)
        rules = [*_latency(figures), *_load(figures), *_memory()]
        group = {"name": f"{recommendation.name}-vllm", "interval": "15s", "rules": rules}
        text = comment(recommendation) + yaml_text({"groups": [group]})
        return (ExportFile(PurePosixPath(f"{recommendation.name}-alerts.yaml"), text),)


def quantile(metric: str, share: float = 0.95) -> str:
    """A percentile of one of vLLM's histograms over five minutes, per model."""
    return f"histogram_quantile({share:g}, sum by (le, model_name) (rate({_ENGINE}{metric}_bucket[5m])))"


def _rule(name: str, expression: str, minutes: int, severity: str, summary: str, description: str) -> dict[str, object]:
    return {
        "alert": name,
        "expr": expression,
        "for": f"{minutes}m",
        "labels": {"severity": severity},
        "annotations": {"summary": summary, "description": description},
    }


def _latency(figures: Figures) -> list[dict[str, object]]:
    rules = []
    for name, metric, limit in (
        ("TimeToFirstToken", "time_to_first_token_seconds", figures.ttft_p95),
        ("TimePerOutputToken", "request_time_per_output_token_seconds", figures.tpot_p95),
    ):
        if limit > 0:
            threshold = rounded(limit * TOLERANCE)
            description = (
                f"The p95 was at most {limit:.3g} s at {figures.level} when it was measured; "
                f"this fires at {TOLERANCE:g} times that."
            )
            summary = f"p95 of {metric} is above {threshold:g} s"
            rules.append(
                _rule(f"Vllm{name}High", f"{quantile(metric)} > {threshold:g}", 5, "warning", summary, description)
            )
    return rules


def _load(figures: Figures) -> list[dict[str, object]]:
    running, waiting = f"{_ENGINE}num_requests_running", f"{_ENGINE}num_requests_waiting"
    rules = [
        _rule(
            "VllmLoadBeyondMeasured", f"{running} + {waiting} > {figures.concurrency}", 5, "warning",
            f"more than {figures.concurrency} requests are in flight",
            f"The configuration was measured up to {figures.concurrency} requests in flight per server; "
            "beyond that nothing is known. Add a server or limit the load.",
        ),
        _rule(
            "VllmQueueStands", f"min_over_time({waiting}[5m]) > 0", 10, "warning",
            "requests have been waiting for ten minutes",
            "The queue did not empty once: the server gets more than it can take.",
        ),
    ]  # fmt: skip
    if figures.output_tokens > 0:
        threshold = rounded(figures.output_tokens / TOLERANCE)
        rules.append(_rule(
            "VllmThroughputLow",
            f"rate({_ENGINE}generation_tokens_total[5m]) < {threshold:g} and {running} >= {figures.concurrency}",
            10, "critical", f"under full load the server makes fewer than {threshold:g} tokens a second",
            f"It made at least {figures.output_tokens:.4g} at {figures.level} when it was measured. "
            "Look for a throttled card, a changed driver or other requests than those that were measured.",
        ))  # fmt: skip
    return rules


def _memory() -> list[dict[str, object]]:
    return [
        _rule(
            "VllmPreempts", f"rate({_ENGINE}num_preemptions_total[5m]) > 0.1", 5, "warning",
            "requests are preempted", "The KV cache is too small for this load: answers are computed twice.",
        ),
        _rule(
            "VllmKvCacheFull", f"{_ENGINE}kv_cache_usage_perc > 0.95", 5, "warning",
            "the KV cache is nearly full", "The next longer prompts will wait or preempt others.",
        ),
    ]  # fmt: skip
