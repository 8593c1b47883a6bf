"""The file for `vllm serve --config`."""

from __future__ import annotations

from pathlib import PurePosixPath

from autotune.export.evidence import comment
from autotune.export.secrets import variables
from autotune.export.values import ExportFile, ExportInput
from autotune.export.yaml_text import yaml_text
from autotune.space.argv import to_yaml_mapping


class VllmYaml:
    """Arguments only; variables are listed as a comment, since vLLM reads none from its file."""

    name = "vllm-yaml"
    title = "file for `vllm serve --config`"

    def render(self, recommendation: ExportInput) -> tuple[ExportFile, ...]:
        """One YAML file."""
        mapping: dict[str, object] = {"model": recommendation.model}
        if recommendation.revision:
            mapping["revision"] = recommendation.revision
        mapping.update(to_yaml_mapping(recommendation.config))
        text = comment(recommendation) + f"# Start: vllm serve --config {recommendation.name}.yaml\n"
        for variable in variables(recommendation.config):
            shown = f"${{{variable.reference}}} (a reference)" if variable.reference else variable.value
            text += f"# Needs the variable {variable.name}={shown}\n"
        path = PurePosixPath(f"{recommendation.name}.yaml")
        return (ExportFile(path, text + yaml_text(mapping)),)
