"""Readiness that waits for a warm-up: the first requests compile and fill caches, and no user should wait for them."""

from __future__ import annotations

from importlib.resources import files
from pathlib import PurePosixPath

from autotune.export.evidence import comment
from autotune.export.facts import deployment_facts
from autotune.export.operations.figures import figures_of
from autotune.export.pods import PROBE_PERIOD_S, start_limit_s
from autotune.export.values import ExportFile, ExportInput
from autotune.export.yaml_text import yaml_text

_FOLDER = "/warmup"


class Warmup:
    """A script in a ConfigMap, and a patch of the Deployment whose start-up probe runs it once."""

    name = "warmup"

    def render(self, recommendation: ExportInput) -> tuple[ExportFile, ...]:
        """ConfigMap and patch (`kubectl patch deployment NAME --patch-file ...`)."""
        figures = figures_of(recommendation)
        script = (files("autotune.export.operations") / "warmup_script.txt").read_text(encoding="utf-8")
        name = f"{recommendation.name}-warmup"
        config = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name},
            "data": {"warmup.py": script},
        }
        command = ["python3", f"{_FOLDER}/warmup.py", str(deployment_facts().port), str(2 * figures.concurrency)]
        tries = -(-start_limit_s(recommendation) // PROBE_PERIOD_S)
        probe = {"exec": {"command": command}, "periodSeconds": PROBE_PERIOD_S, "timeoutSeconds": 300}
        container = {
            "name": "vllm",
            # The probe's own HTTP check must go: a probe has one handler.
            "startupProbe": {"httpGet": None, **probe, "failureThreshold": tries},
            "volumeMounts": [{"name": "warmup", "mountPath": _FOLDER}],
        }
        volume = {"name": "warmup", "configMap": {"name": name}}
        patch = {"spec": {"template": {"spec": {"containers": [container], "volumes": [volume]}}}}
        head = comment(recommendation)
        return (
            ExportFile(PurePosixPath(f"{name}.yaml"), head + yaml_text(config)),
            ExportFile(PurePosixPath(f"{name}-patch.yaml"), head + yaml_text(patch)),
        )
