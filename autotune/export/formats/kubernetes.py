"""A Kubernetes Deployment with its Service."""

from __future__ import annotations

from pathlib import PurePosixPath

from autotune.export.evidence import comment
from autotune.export.facts import deployment_facts
from autotune.export.pods import container, volumes
from autotune.export.values import ExportFile, ExportInput
from autotune.export.yaml_text import yaml_text


class Kubernetes:
    """Secrets are keys of the Secret `<name>-secrets`, which is not written here."""

    name = "kubernetes"
    title = "Kubernetes Deployment and Service"

    def render(self, recommendation: ExportInput) -> tuple[ExportFile, ...]:
        """One file with both objects."""
        labels = {"app.kubernetes.io/name": recommendation.name}
        pod = {"containers": [container(recommendation)], "volumes": volumes(), "terminationGracePeriodSeconds": 120}
        deployment = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": recommendation.name, "labels": labels},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                # A second server beside the first needs GPUs that may not be there.
                "strategy": {"type": "Recreate"},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        }
        port = {"name": "http", "port": deployment_facts().port, "targetPort": "http"}
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": recommendation.name, "labels": labels},
            "spec": {"selector": labels, "ports": [port]},
        }
        text = comment(recommendation) + yaml_text(deployment) + "---\n" + yaml_text(service)
        return (ExportFile(PurePosixPath(f"{recommendation.name}-deployment.yaml"), text),)
