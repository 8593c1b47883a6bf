"""JSON Schema of the study file, for editors. `python -m autotune.spec.schema` writes the one that ships."""

from __future__ import annotations

import json
import os
from importlib.resources import files
from pathlib import Path

from autotune.spec.study import StudySpec

SCHEMA_FILE = Path(str(files("autotune").joinpath("data/study.schema.json")))
"""Where the shipped schema stands, in a checkout as in an installed wheel."""


def schema_text() -> str:
    """The schema as it stands in the shipped file."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **StudySpec.model_json_schema(),
        "title": "vllm-autotune study",
    }
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def editor_line(study: Path) -> str:
    """The comment that makes editors find the schema from a study file at `study`."""
    folder = study.resolve().parent
    near = SCHEMA_FILE.is_relative_to(Path.cwd().resolve()) or SCHEMA_FILE.is_relative_to(folder)
    target = Path(os.path.relpath(SCHEMA_FILE, folder)) if near else SCHEMA_FILE
    return f"# yaml-language-server: $schema={target.as_posix()}"


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
