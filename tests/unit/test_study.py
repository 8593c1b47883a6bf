"""A study on disk: who holds it, and what a disk that takes no more means."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from autotune.errors import EnvironmentFault, SpecError, StoreError
from autotune.outcome import Proposal
from autotune.space.config import EngineConfig
from autotune.study import Study, open_study
from tests.desk import STUDY


@pytest.fixture
def study(tmp_path: Path) -> Study:
    path = tmp_path / "tiny.yaml"
    path.write_text(STUDY)
    return open_study(path)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS])
def test_a_disk_that_takes_no_more_is_said_in_words(study: Study, number: int) -> None:
    with pytest.raises(EnvironmentFault) as caught, study.locked():
        raise OSError(number, os.strerror(number), "engine.log")
    assert os.strerror(number) in caught.value.message and "engine.log" in caught.value.message
    assert "everything finished is kept" in (caught.value.hint or "")
    with study.locked():
        pass  # it was given back


def test_other_faults_are_not_taken_for_a_full_disk(study: Study) -> None:
    with pytest.raises(PermissionError), study.locked():
        raise PermissionError(errno.EACCES, "no", "file")


def test_a_folder_that_is_moved_away_ends_the_study(study: Study) -> None:
    """It went on in a new folder, and its records in a file that nobody sees."""
    away = study.folder.with_name("away")
    with pytest.raises(EnvironmentFault, match="was moved, replaced or deleted"), study.locked():
        study.folder.rename(away)
        (study.folder / "trial-0000" / "level-0.npz").read_bytes()
    away.rename(study.folder)
    store = study.store()
    store.open(study.spec.model_dump_json(), "")
    store.begin(0, 1, Proposal(EngineConfig(), (), "search"))
    study.folder.rename(away)
    study.folder.mkdir()
    with pytest.raises(StoreError, match="was moved, replaced or deleted"):
        store.begin(1, 1, Proposal(EngineConfig(), (), "search"))
    store.close()


def test_a_device_that_is_really_full(study: Study) -> None:
    with pytest.raises(EnvironmentFault, match="No space left"), study.locked():
        Path("/dev/full").write_bytes(b"x")


def test_what_is_told_of_records_is_what_they_were_measured_with(study: Study) -> None:
    """A study file that was edited for the next study gave the old records another model and another load."""
    store = study.store()
    store.open(study.spec.model_dump_json(), "")
    edited = STUDY.replace("llama-3.1-8b", "qwen3-8b").replace("levels: [4]", "levels: [8, 16]")
    study.path.write_text(edited.replace("card: h100", "card: a100").replace("percentile: 90", "percentile: 50"))
    now = open_study(study.path)
    told = now.as_measured(store)
    store.close()
    assert now.spec.model == "qwen3-8b"
    assert told.spec.model_copy(update={"objectives": study.spec.objectives}) == study.spec
    assert told.spec.objectives == now.spec.objectives, "what counts may be chosen afterwards"


STORED = STUDY + "storage: "


@pytest.mark.parametrize("form", ["sqlite:///data/kept.db", "sqlite:///{absolute}/kept.db"])
def test_a_database_elsewhere_is_used_by_everybody(tmp_path: Path, form: str) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(STORED + form.format(absolute=tmp_path / "far"))
    opened = open_study(path)
    assert opened.file is not None and opened.file.name == "kept.db" and opened.folder == tmp_path / "tiny"
    with pytest.raises(SpecError, match=r"has no results in .*kept\.db"):
        opened.existing_store()
    store = opened.store()
    store.open("{}", "f")
    store.close()
    assert opened.file.is_file() and not (opened.folder / "study.db").exists()
    opened.existing_store().close()
    other = tmp_path / "elsewhere" / "tiny.yaml"
    other.parent.mkdir()
    other.write_text(STORED + f"sqlite:///{opened.file}")
    with (
        opened.locked(),
        pytest.raises(EnvironmentFault, match="is being run by another process"),
        open_study(other).locked(),
    ):
        pass


@pytest.mark.parametrize(
    ("storage", "what"),
    [
        ("mysql://host/db", "mysql is no database"),
        ("sqlite://", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite+aiosqlite:///x.db", "names no file"),
    ],
)
def test_a_storage_that_cannot_be_is_refused_with_its_line(tmp_path: Path, storage: str, what: str) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(STORED + f"'{storage}'")
    with pytest.raises(SpecError, match=rf"tiny\.yaml:{len(path.read_text().splitlines())}: storage: {what}"):
        open_study(path)
