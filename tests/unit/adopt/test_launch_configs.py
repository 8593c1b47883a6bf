"""Twenty deployments of the public: what reading each file must give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.adopt.registry import SOURCES, adopt_file
from autotune.lint.check import lint

FOLDER = Path(__file__).parents[2] / "data" / "launch_configs"
EXPECTED = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_file_gives_its_arguments(name: str) -> None:
    expected = EXPECTED[name]
    adopted = adopt_file(FOLDER / name)
    args = {key: tuple(value) if isinstance(value, list) else value for key, value in expected["args"].items()}
    assert dict(adopted.config.args) == args
    assert dict(adopted.config.env) == expected["env"]
    found = (adopted.format, adopted.model, adopted.reading.gpus, adopted.version)
    assert found == (expected["format"], expected["model"], expected["gpus"], expected["version"])


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_what_is_lost_is_named(name: str) -> None:
    expected = EXPECTED[name]
    adopted = adopt_file(FOLDER / name)
    assert sorted(item.name.lstrip("-") for item in adopted.unknown) == sorted(expected["unknown"])
    assert list(adopted.secrets) == expected["secrets"]
    assert not adopted.exposed
    for part in expected["unread"]:
        assert any(part in text for text in adopted.unread), part
    assert bool(adopted.unread) == bool(expected["unread"])
    for part in expected["notes"]:
        assert any(part in text for text in adopted.notes), part


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_lint_names_what_the_file_is_known_for(name: str) -> None:
    found = {finding.rule for finding in lint(adopt_file(FOLDER / name))}
    assert set(EXPECTED[name]["lint"]) <= found


def test_every_argument_has_a_place_in_its_file() -> None:
    for name in EXPECTED:
        adopted = adopt_file(FOLDER / name)
        lines = adopted.text.splitlines()
        for place in adopted.places:
            line = adopted.line_of_argument(place.name)
            if line is not None:
                written = place.written.lstrip("-").replace("_", "-").partition(".")[0]
                here = lines[line - 1].replace("_", "-")
                assert written in here or "-cc." in here or "p-size" in here, (name, place.name)


def test_files_of_every_common_format_are_there() -> None:
    assert {row["format"] for row in EXPECTED.values()} <= SOURCES.keys()
    assert {"shell", "vllm-yaml", "compose", "kubernetes", "production-stack", "helm"} <= {
        row["format"] for row in EXPECTED.values()
    }
