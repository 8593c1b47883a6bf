"""A KServe InferenceService with vLLM's own image as its predictor."""

from __future__ import annotations

from pathlib import PurePosixPath

from autotune.export.evidence import comment
from autotune.export.pods import container, volumes
from autotune.export.values import ExportFile, ExportInput
from autotune.export.yaml_text import yaml_text


class KServe:
    """A custom predictor: what was measured is vLLM's own server, not KServe's wrapper around it."""

    name = "kserve"
    title = "KServe InferenceService"

    def render(self, recommendation: ExportInput) -> tuple[ExportFile, ...]:
        """One object."""
        body = container(recommendation, "kserve-container")
        body["ports"] = [{"name": "http1", "containerPort": 8000, "protocol": "TCP"}]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            shown = body[probe]
            assert isinstance(shown, dict)
            body[probe] = {**shown, "httpGet": {"path": "/health", "port": 8000}}
        service = {
            "apiVersion": "serving.kserve.io/v1beta1",
            "kind": "InferenceService",
            "metadata": {
                "name": recommendation.name,
                "annotations": {"serving.kserve.io/deploymentMode": "Standard"},
            },
            "spec": {"predictor": {"minReplicas": 1, "containers": [body], "volumes": volumes()}},
        }
        path = PurePosixPath(f"{recommendation.name}-inferenceservice.yaml")
        return (ExportFile(path, comment(recommendation) + yaml_text(service)),)
