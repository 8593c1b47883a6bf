"""Everything as JSON, for programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import PurePosixPath

from autotune.export.evidence import evidence_lines
from autotune.export.formats.shell import serve_command
from autotune.export.secrets import variables
from autotune.export.values import ExportFile, ExportInput
from autotune.space.argv import to_yaml_mapping


class JsonFile:
    """JSON has no comments: the evidence is under `evidence`, as values and as sentences."""

    name = "json"
    title = "JSON with arguments, command and evidence"

    def render(self, recommendation: ExportInput) -> tuple[ExportFile, ...]:
        """One JSON file."""
        body = {
            "name": recommendation.name,
            "model": recommendation.model,
            "revision": recommendation.revision,
            "args": to_yaml_mapping(recommendation.config),
            "env": {
                v.name: f"${{{v.reference}}}" if v.reference else v.value for v in variables(recommendation.config)
            },
            "command": serve_command(recommendation),
            "evidence": {**_plain(recommendation), "sentences": list(evidence_lines(recommendation))},
            "notes": list(recommendation.notes),
        }
        return (ExportFile(PurePosixPath(f"{recommendation.name}.json"), json.dumps(body, indent=2) + "\n"),)


def _plain(recommendation: ExportInput) -> dict[str, object]:
    evidence = recommendation.evidence
    rows = [{"metric": m.key, "level": str(m.level), **asdict(m.estimate)} for m in evidence.measures]
    gains = [{"objective": label, "ratio": r, "low": low, "high": high} for label, r, low, high in evidence.gains]
    return {**asdict(evidence), "measures": rows, "gains": gains}
