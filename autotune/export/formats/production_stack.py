"""Values for the chart of the vLLM production-stack."""

from __future__ import annotations

from pathlib import PurePosixPath

from autotune.adopt.format_facts import format_facts
from autotune.export.evidence import comment
from autotune.export.facts import gpus_of
from autotune.export.pods import env_entries, image_of, serve_args
from autotune.export.values import ExportFile, ExportInput
from autotune.export.yaml_text import yaml_text

_OURS = ("--host=", "--port=")


class ProductionStack:
    """Arguments that the chart has a key for go there, the others into `extraArgs`."""

    name = "production-stack"
    title = "Helm values for the vLLM production-stack"

    def render(self, recommendation: ExportInput) -> tuple[ExportFile, ...]:
        """One values file."""
        config = recommendation.config
        keys = {argument: path[-1] for path, argument in format_facts().keys.items() if path[0] == "vllmConfig"}
        vllm = {keys[name]: value for name, value in config.args if name in keys}
        # The chart switches prefix caching off where its key is missing; vLLM's own default is on.
        vllm.setdefault("enablePrefixCaching", True)
        extra = [a for a in serve_args(recommendation, frozenset(keys)) if not a.startswith(_OURS)]
        repository, _, tag = image_of(recommendation).rpartition(":")
        model: dict[str, object] = {
            "name": recommendation.name,
            "repository": repository,
            "tag": tag,
            "modelURL": recommendation.model,
            "replicaCount": 1,
            "requestCPU": 8,
            "requestMemory": "32Gi",
            "requestGPU": gpus_of(config),
            "vllmConfig": {**vllm, **({"extraArgs": extra} if extra else {})},
        }
        if entries := env_entries(recommendation):
            model["env"] = entries
        text = comment(recommendation) + yaml_text({"servingEngineSpec": {"modelSpec": [model]}})
        return (ExportFile(PurePosixPath(f"{recommendation.name}-production-stack-values.yaml"), text),)
