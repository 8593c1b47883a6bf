"""A docker compose file."""

from __future__ import annotations

from pathlib import PurePosixPath

from autotune.export.evidence import comment
from autotune.export.facts import deployment_facts, gpus_of
from autotune.export.pods import image_of, serve_args, start_limit_s
from autotune.export.secrets import variables
from autotune.export.values import ExportFile, ExportInput
from autotune.export.yaml_text import yaml_text


class Compose:
    """Secrets come from the shell or a `.env` file beside it; compose refuses to start where one is missing."""

    name = "compose"
    title = "docker compose file"

    def render(self, recommendation: ExportInput) -> tuple[ExportFile, ...]:
        """One file with one service."""
        port = deployment_facts().port
        environment = {
            v.name: f"${{{v.reference}:?set {v.reference}}}" if v.reference else v.value.replace("$", "$$")
            for v in variables(recommendation.config)
        }
        gpu = {"driver": "nvidia", "count": gpus_of(recommendation.config), "capabilities": ["gpu"]}
        check = f"python3 -c \"import urllib.request as u; u.urlopen('http://127.0.0.1:{port}/health', timeout=5)\""
        service: dict[str, object] = {
            "image": image_of(recommendation),
            "entrypoint": ["vllm", "serve"],
            "command": [word.replace("$", "$$") for word in (recommendation.model, *serve_args(recommendation))],
            **({"environment": environment} if environment else {}),
            "ports": [f"127.0.0.1:{port}:{port}"],
            "volumes": ["~/.cache/huggingface:/root/.cache/huggingface"],
            "ipc": "host",
            "restart": "unless-stopped",
            "stop_grace_period": "120s",
            "healthcheck": {
                "test": ["CMD-SHELL", check],
                "interval": "10s",
                "timeout": "6s",
                "retries": 6,
                "start_period": f"{start_limit_s(recommendation)}s",
            },
            "deploy": {"resources": {"reservations": {"devices": [gpu]}}},
        }
        text = comment(recommendation) + yaml_text({"services": {recommendation.name: service}})
        return (ExportFile(PurePosixPath(f"{recommendation.name}-compose.yaml"), text),)
