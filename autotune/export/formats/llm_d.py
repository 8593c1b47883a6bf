"""Values for llm-d's modelservice chart."""

from __future__ import annotations

from pathlib import PurePosixPath

from autotune.export.evidence import comment
from autotune.export.facts import deployment_facts, gpus_of
from autotune.export.pods import env_entries, image_of, serve_args
from autotune.export.values import ExportFile, ExportInput
from autotune.export.yaml_text import yaml_text

_OURS = ("--host=", "--port=")


class LlmD:
    """The chart makes the layout's flags from `parallelism`, so they are not given twice."""

    name = "llm-d"
    title = "Helm values for llm-d's modelservice"

    def render(self, recommendation: ExportInput) -> tuple[ExportFile, ...]:
        """One values file."""
        layout = deployment_facts().llm_d
        config = recommendation.config
        sizes = {key: config.get(argument, 1) for key, argument in layout.items()}
        args = [a for a in serve_args(recommendation, frozenset(layout.values())) if not a.startswith(_OURS)]
        gpus = str(gpus_of(config))
        values = {
            "modelArtifacts": {
                "name": recommendation.model,
                "uri": f"hf://{recommendation.model}",
                "size": "100Gi",
                "authSecretName": f"{recommendation.name}-secrets",
            },
            "routing": {"servicePort": deployment_facts().port, "proxy": {"enabled": False}},
            "decode": {
                "create": True,
                "replicas": 1,
                "parallelism": sizes,
                "containers": [
                    {
                        "name": "vllm",
                        "image": image_of(recommendation),
                        "modelCommand": "vllmServe",
                        "args": args,
                        "env": env_entries(recommendation),
                        "resources": {"limits": {"nvidia.com/gpu": gpus}, "requests": {"nvidia.com/gpu": gpus}},
                        "mountModelVolume": True,
                    }
                ],
            },
            "prefill": {"create": False},
        }
        path = PurePosixPath(f"{recommendation.name}-llm-d-values.yaml")
        return (ExportFile(path, comment(recommendation) + yaml_text(values)),)
