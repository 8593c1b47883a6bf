"""Autoscaling on the queue: KEDA, or a plain HorizontalPodAutoscaler over the same metric."""

from __future__ import annotations

from pathlib import PurePosixPath

from autotune.export.evidence import comment
from autotune.export.operations.figures import figures_of
from autotune.export.pods import start_limit_s
from autotune.export.values import ExportFile, ExportInput
from autotune.export.yaml_text import yaml_text

_TARGET = 0.8
"""A new server is wanted at this share of the measured load, since it takes its time to start."""
_MOST = 8


class Autoscale:
    """Requests in flight per server are held below the measured load; scaling down waits longer than a start takes."""

    name = "autoscale"

    def render(self, recommendation: ExportInput) -> tuple[ExportFile, ...]:
        """Two files; use one of them."""
        wanted = max(int(figures_of(recommendation).concurrency * _TARGET), 1)
        return (_keda(recommendation, wanted), _hpa(recommendation, wanted))


def _keda(recommendation: ExportInput, wanted: int) -> ExportFile:
    pods = f'{{pod=~"{recommendation.name}-.*"}}'
    query = f"sum(vllm:num_requests_running{pods}) + sum(vllm:num_requests_waiting{pods})"
    metadata = {
        "serverAddress": "http://prometheus-operated.monitoring.svc:9090",
        "query": query,
        "threshold": str(wanted),
    }
    body = {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": recommendation.name},
        "spec": {
            "scaleTargetRef": {"name": recommendation.name},
            "minReplicaCount": 1,
            "maxReplicaCount": _MOST,
            "pollingInterval": 15,
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behaviour(recommendation)}},
            "triggers": [{"type": "prometheus", "metricType": "AverageValue", "metadata": metadata}],
        },
    }
    note = "# serverAddress is where your Prometheus answers.\n"
    text = comment(recommendation) + note + yaml_text(body)
    return ExportFile(PurePosixPath(f"{recommendation.name}-keda.yaml"), text)


def _hpa(recommendation: ExportInput, wanted: int) -> ExportFile:
    metric = {
        "type": "Pods",
        "pods": {
            "metric": {"name": "vllm_requests_in_flight"},
            "target": {"type": "AverageValue", "averageValue": str(wanted)},
        },
    }
    body = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": recommendation.name},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": recommendation.name},
            "minReplicas": 1,
            "maxReplicas": _MOST,
            "behavior": _behaviour(recommendation),
            "metrics": [metric],
        },
    }
    note = (
        "# Needs the Prometheus adapter with a rule that serves, as vllm_requests_in_flight,\n"
        "#   sum(vllm:num_requests_running + vllm:num_requests_waiting) by (namespace, pod)\n"
    )
    text = comment(recommendation) + note + yaml_text(body)
    return ExportFile(PurePosixPath(f"{recommendation.name}-hpa.yaml"), text)


def _behaviour(recommendation: ExportInput) -> dict[str, object]:
    window = min(max(start_limit_s(recommendation), 300), 3600)
    return {
        "scaleUp": {"stabilizationWindowSeconds": 30, "policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}]},
        "scaleDown": {
            "stabilizationWindowSeconds": window,
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": 300}],
        },
    }
