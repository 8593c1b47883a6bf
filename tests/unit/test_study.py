"""A study on disk: who holds it, and what a disk that takes no more means."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from autotune.errors import EnvironmentFault
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


def test_a_device_that_is_really_full(study: Study) -> None:
    with pytest.raises(EnvironmentFault, match="No space left"), study.locked():
        Path("/dev/full").write_bytes(b"x")
