"""A Grafana dashboard whose lines are the measured figures."""

from __future__ import annotations

import json
from pathlib import PurePosixPath

from autotune.export.evidence import evidence_lines
from autotune.export.operations.alerts import quantile
from autotune.export.operations.figures import TOLERANCE, figures_of, rounded
from autotune.export.values import ExportFile, ExportInput

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT = 12, 8


class Grafana:
    """JSON has no comments: the evidence is a text panel."""

    name = "grafana"

    def render(self, recommendation: ExportInput) -> tuple[ExportFile, ...]:
        """One dashboard to import."""
        figures = figures_of(recommendation)
        charts = [
            ("Time to first token, p95", quantile("time_to_first_token_seconds"), "s", figures.ttft_p95 * TOLERANCE),
            ("Time per output token, p95", quantile("request_time_per_output_token_seconds"), "s",
             figures.tpot_p95 * TOLERANCE),
            ("Requests running", "vllm:num_requests_running", "short", float(figures.concurrency)),
            ("Requests waiting", "vllm:num_requests_waiting", "short", 1.0),
            ("Output tokens per second", "rate(vllm:generation_tokens_total[5m])", "short", figures.output_tokens),
            ("KV cache in use", "vllm:kv_cache_usage_perc", "percentunit", 0.95),
        ]  # fmt: skip
        panels = [_text(recommendation)]
        panels += [_chart(number, *chart) for number, chart in enumerate(charts)]
        dashboard = {
            "title": f"vLLM {recommendation.name}",
            "uid": f"autotune-{recommendation.name}"[:40],
            "schemaVersion": 39,
            "version": 1,
            "editable": True,
            "refresh": "30s",
            "time": {"from": "now-3h", "to": "now"},
            "templating": {
                "list": [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Source"}]
            },
            "panels": panels,
        }
        return (
            ExportFile(PurePosixPath(f"{recommendation.name}-grafana.json"), json.dumps(dashboard, indent=2) + "\n"),
        )


def _text(recommendation: ExportInput) -> dict[str, object]:
    content = "\n".join(f"    {line}" for line in evidence_lines(recommendation))
    return {
        "id": 1,
        "type": "text",
        "title": "Where the lines come from",
        "gridPos": {"x": 0, "y": 0, "w": 2 * _WIDTH, "h": _HEIGHT},
        "options": {"mode": "markdown", "content": content},
    }


def _chart(number: int, title: str, expression: str, unit: str, line: float) -> dict[str, object]:
    steps: list[dict[str, object]] = [{"color": "green", "value": None}]
    if line > 0:
        steps.append({"color": "red", "value": rounded(line)})
    return {
        "id": number + 2,
        "type": "timeseries",
        "title": title,
        "datasource": _SOURCE,
        "gridPos": {"x": number % 2 * _WIDTH, "y": _HEIGHT * (1 + number // 2), "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {
            "defaults": {
                "unit": unit,
                "min": 0,
                "thresholds": {"mode": "absolute", "steps": steps},
                "custom": {"thresholdsStyle": {"mode": "line"}},
            },
            "overrides": [],
        },
        "targets": [{"refId": "A", "datasource": _SOURCE, "expr": expression, "legendFormat": "{{model_name}}"}],
    }
