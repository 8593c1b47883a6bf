"""What is made from the types is current: the reference and the editors' schema."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from autotune.spec.document import read_document
from autotune.spec.load import load_study
from autotune.spec.reference import reference_text
from autotune.spec.schema import SCHEMA_FILE, editor_line, schema_text
from autotune.spec.study import StudySpec

ROOT = Path(__file__).parents[3]
GOOD = sorted((ROOT / "tests/data/specs/good").glob("*.yaml"))
SHIPPED = sorted([*ROOT.glob("studies/*.yaml"), *ROOT.glob("examples/*.yaml")])


def test_the_reference_is_current() -> None:
    told = "run: python -m autotune.spec.reference docs/study-file.md"
    assert (ROOT / "docs/study-file.md").read_text(encoding="utf-8") == reference_text(), told


def test_the_schema_is_current() -> None:
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text(), "run: python -m autotune.spec.schema"


def test_every_key_is_explained() -> None:
    text = reference_text()
    for name, field in StudySpec.model_fields.items():
        assert field.description
        assert f"| `{name}` |" in text
    for line in text.splitlines():
        if line.startswith("| `"):
            assert len(line.rstrip(" |").split("|")) >= 5, f"no meaning in {line}"


def test_the_reference_s_example_loads(tmp_path: Path) -> None:
    example = reference_text().split("```yaml\n")[1].split("```")[0]
    path = tmp_path / "study.yaml"
    path.write_text(example, encoding="utf-8")
    assert load_study(path).name == "first"


@pytest.mark.parametrize("path", [*GOOD, *SHIPPED], ids=lambda path: path.stem)
def test_the_schema_accepts_good_files(path: Path) -> None:
    schema = json.loads(schema_text())
    Draft202012Validator.check_schema(schema)
    errors = [error.message for error in Draft202012Validator(schema).iter_errors(read_document(path).data)]
    assert errors == []


@pytest.mark.parametrize("name", ["unknown-key", "unknown-engine", "bad-duration", "out-of-range", "no-model"])
def test_the_schema_refuses_bad_files(name: str) -> None:
    data = YAML(typ="safe", pure=True).load((ROOT / f"tests/data/specs/bad/{name}.yaml").read_text(encoding="utf-8"))
    assert list(Draft202012Validator(json.loads(schema_text())).iter_errors(data))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_editors_find_the_schema_from_shipped_files(path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    target = first.removeprefix("# yaml-language-server: $schema=")
    assert target != first
    assert (path.parent / target).resolve() == SCHEMA_FILE.resolve()


def test_editors_find_the_schema_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    target = editor_line(tmp_path / "study.yaml").removeprefix("# yaml-language-server: $schema=")
    assert (tmp_path / target).resolve() == SCHEMA_FILE.resolve()
