"""A file of variables, for `docker run --env-file`, systemd or a script."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath

from autotune.export.evidence import comment
from autotune.export.formats.shell import serve_command
from autotune.export.secrets import variables
from autotune.export.values import ExportFile, ExportInput


class EnvFile:
    """The engine's variables, the model, and the arguments as one text. Secrets are named, not written."""

    name = "env"
    title = "file of environment variables"

    def render(self, recommendation: ExportInput) -> tuple[ExportFile, ...]:
        """One file. Values are not quoted: docker takes quotes as part of a value."""
        lines = [f"VLLM_MODEL={recommendation.model}"]
        lines.append(f"VLLM_SERVE_ARGS={shlex.join(serve_command(recommendation)[3:])}")
        for variable in variables(recommendation.config):
            if variable.reference:
                lines.append(f"# {variable.name}: set it from your secret store")
            else:
                lines.append(f"{variable.name}={variable.value}")
        text = comment(recommendation) + "\n".join(lines) + "\n"
        return (ExportFile(PurePosixPath(f"{recommendation.name}.env"), text),)
