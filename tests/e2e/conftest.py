"""A whole study on the simulated engine, run once with the real command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.desk import VIRTUAL, Desk


@dataclass(frozen=True)
class Finished:
    """A study that has been run once for all tests that look at its results."""

    desk: Desk
    study: Path
    output: str


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("finished")
    (folder / "scratch").mkdir()
    desk = Desk(folder, folder / "scratch")
    study = desk.write(VIRTUAL)
    done = desk.run("run", "tiny.yaml")
    assert done.returncode == 0, done.stderr + done.stdout
    desk.wait_until_nothing_is_left()
    return Finished(desk, study, done.stdout)
