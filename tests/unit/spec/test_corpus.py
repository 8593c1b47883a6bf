"""Good and bad study files with the exact message that a user sees. The corpus is the test of the specification.

After a change of the types, `UPDATE_EXPECTED=1 pytest tests/unit/spec/test_corpus.py` writes the messages anew; read
the difference before you commit it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.errors import SpecError, SpecErrors
from autotune.spec.load import load_study
from autotune.spec.resolved import resolved_yaml

SPECS = Path(__file__).parents[2] / "data" / "specs"
GOOD = sorted((SPECS / "good").glob("*.yaml"))
BAD = sorted((SPECS / "bad").glob("*.yaml"))
SHIPPED = sorted(
    [*Path(__file__).parents[3].glob("studies/*.yaml"), *Path(__file__).parents[3].glob("examples/*.yaml")]
)


def test_the_corpus_is_there() -> None:
    assert len(GOOD) >= 12
    assert len(BAD) >= 40
    assert len(SHIPPED) >= 6
    assert {path.stem for path in BAD} == {path.stem for path in (SPECS / "bad").glob("*.expected")}


@pytest.mark.parametrize("path", [*GOOD, *SHIPPED], ids=lambda path: path.stem)
def test_good_files_load(path: Path) -> None:
    assert load_study(path).model


@pytest.mark.parametrize("path", [*GOOD, *SHIPPED], ids=lambda path: path.stem)
def test_a_resolved_study_reads_back_as_the_same_study(path: Path, tmp_path: Path) -> None:
    study = load_study(path)
    again = tmp_path / "resolved.yaml"
    again.write_text(resolved_yaml(study), encoding="utf-8")
    assert load_study(again) == study


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_bad_files_say_what_is_wrong(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    with pytest.raises(SpecError) as caught:
        load_study(path.name)
    expected = path.with_suffix(".expected")
    if os.environ.get("UPDATE_EXPECTED"):
        expected.write_text(f"{caught.value}\n", encoding="utf-8")
    assert str(caught.value) == expected.read_text(encoding="utf-8").rstrip("\n")


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_every_mistake_names_file_and_place(path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        load_study(path)
    errors = caught.value.errors if isinstance(caught.value, SpecErrors) else (caught.value,)
    size = len(path.read_bytes().splitlines())
    for error in errors:
        assert error.file == str(path)
        assert error.line is None or 1 <= error.line <= size + 1
        assert error.message
