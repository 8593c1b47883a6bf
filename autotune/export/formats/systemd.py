"""A systemd unit."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from autotune.export.evidence import comment
from autotune.export.formats.shell import serve_command
from autotune.export.pods import start_limit_s
from autotune.export.secrets import variables
from autotune.export.values import ExportFile, ExportInput

_PLAIN = re.compile(r"[A-Za-z0-9_./=:,@+-]+")


class Systemd:
    """Secrets are read from `/etc/<name>/secrets.env`, which only root should be able to read."""

    name = "systemd"
    title = "systemd unit"

    def render(self, recommendation: ExportInput) -> tuple[ExportFile, ...]:
        """One unit."""
        found = variables(recommendation.config)
        lines = [f"Environment={quoted(f'{v.name}={v.value}')}" for v in found if not v.reference]
        secrets = [v.name for v in found if v.reference]
        if secrets:
            lines.insert(0, f"# {', '.join(secrets)} are read from this file")
            lines.insert(1, f"EnvironmentFile=/etc/{recommendation.name}/secrets.env")
        text = comment(recommendation) + "\n".join(
            [
                "[Unit]",
                f"Description=vLLM server of {recommendation.name}",
                "Wants=network-online.target",
                "After=network-online.target",
                "",
                "[Service]",
                "Type=exec",
                *lines,
                "ExecStart=" + _command(recommendation),
                "Restart=on-failure",
                "RestartSec=10",
                f"TimeoutStartSec={start_limit_s(recommendation)}",
                "TimeoutStopSec=120",
                "KillMode=mixed",
                "LimitNOFILE=65536",
                "LimitMEMLOCK=infinity",
                "",
                "[Install]",
                "WantedBy=multi-user.target",
                "",
            ]
        )
        return (ExportFile(PurePosixPath(f"{recommendation.name}.service"), text),)


def quoted(word: str) -> str:
    """A word as systemd reads it back: `%` and `$` doubled, quotes and backslashes escaped."""
    plain = word.replace("%", "%%")
    if _PLAIN.fullmatch(plain):
        return plain
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _command(recommendation: ExportInput) -> str:
    """`env` finds vLLM on the unit's PATH; every flag stands on a line of its own."""
    lines: list[str] = []
    for token in ["/usr/bin/env", *serve_command(recommendation)]:
        word = quoted(token.replace("$", "$$"))
        if token.startswith("-"):
            lines.append(word)
        elif lines:
            lines[-1] += " " + word
        else:
            lines.append(word)
    return " \\\n  ".join(lines)
