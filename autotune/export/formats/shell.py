"""A shell script that starts the server."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import PurePosixPath

from autotune.export.evidence import comment
from autotune.export.secrets import variables
from autotune.export.values import ExportFile, ExportInput
from autotune.space.argv import to_argv


class Shell:
    """POSIX sh; secrets must be in the environment, and the script stops with a message where one is not."""

    name = "shell"
    title = "shell script with `vllm serve`"

    def render(self, recommendation: ExportInput) -> tuple[ExportFile, ...]:
        """One script."""
        text = "#!/bin/sh\n" + comment(recommendation) + "set -eu\n"
        for variable in variables(recommendation.config):
            if variable.reference:
                text += f': "${{{variable.reference}:?set {variable.reference}}}"\n'
            value = f'"${{{variable.reference}}}"' if variable.reference else shlex.quote(variable.value)
            text += f"export {variable.name}={value}\n"
        text += "exec " + " \\\n  ".join(_lines(serve_command(recommendation))) + ' "$@"\n'
        return (ExportFile(PurePosixPath(f"{recommendation.name}.sh"), text),)


def serve_command(recommendation: ExportInput) -> list[str]:
    """`vllm serve MODEL` with its arguments, one token each."""
    revision = ["--revision", recommendation.revision] if recommendation.revision else []
    return ["vllm", "serve", recommendation.model, *revision, *to_argv(recommendation.config, recommendation.table)]


def _lines(tokens: Iterable[str]) -> list[str]:
    """The command first, then every flag with its values on a line of its own."""
    lines: list[str] = []
    for token in tokens:
        if not lines or token.startswith("-"):
            lines.append(shlex.quote(token))
        else:
            lines[-1] += " " + shlex.quote(token)
    return lines
