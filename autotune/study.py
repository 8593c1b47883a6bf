"""A study on disk: its file, its folder, its lock, its store."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from autotune.errors import EnvironmentFault, SpecError
from autotune.spec.load import load_study
from autotune.spec.study import StudySpec
from autotune.store import Store

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
"""A disk that is full, a quota, a limit on the size of files, a disk that became read-only."""


@dataclass(frozen=True)
class Study:
    """A study file that was read, and where its results go.

    Attributes:
        path: the study file.
        spec: its content.
        folder: logs, artifacts and (for SQLite) the database.
        database: SQLAlchemy URL.
    """

    path: Path
    spec: StudySpec
    folder: Path
    database: str

    def store(self) -> Store:
        """Open the store; the folder is made."""
        if self.database.startswith("sqlite"):
            return Store.at(self.folder, self.spec.name)
        self.folder.mkdir(parents=True, exist_ok=True)
        return Store(self.database, self.spec.name)

    def existing_store(self) -> Store:
        """Open the store of a study that has been run.

        Raises:
            SpecError: it has never been run.
        """
        hint = f"run it first: autotune run {self.path}"
        if self.database.startswith("sqlite") and not (self.folder / "study.db").is_file():
            raise SpecError(f"study {self.spec.name!r} has no results in {self.folder}", file=self.path, hint=hint)
        store = self.store()
        if store.head() is None:
            store.close()
            raise SpecError(f"study {self.spec.name!r} has no results in {self.folder}", file=self.path, hint=hint)
        return store

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the study: one tuner at a time.

        Raises:
            EnvironmentFault: another process tunes it, or the disk takes no more while it is held.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.folder / "study.lock", timeout=0)
            lock.acquire()
        except Timeout:
            raise EnvironmentFault(
                f"study {self.spec.name!r} is being run by another process (lock {self.folder / 'study.lock'})",
                hint="wait for it, or look at it with: autotune status",
            ) from None
        except OSError as error:
            raise EnvironmentFault(
                f"{self.folder} cannot be written: {error.strerror}", hint="choose another `storage:`"
            ) from error
        try:
            yield
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            where = f" ({error.filename})" if error.filename else ""
            raise EnvironmentFault(
                f"study {self.spec.name!r} cannot write: {error.strerror}{where}",
                hint=f"everything finished is kept: make room for {self.folder} and run the study again",
            ) from error
        finally:
            lock.release()


def open_study(path: Path | str, overrides: Sequence[str] = ()) -> Study:
    """Read a study file.

    Raises:
        SpecError: the file is wrong; file, line, key and what is legal are named.
    """
    path = Path(path)
    return study_of(load_study(path, overrides), path)


def study_of(spec: StudySpec, path: Path) -> Study:
    """A study from a spec that is already read; `path` says where relative names start."""
    home = path.parent
    storage = spec.storage
    if storage is not None and "://" in storage:
        return Study(path, spec, home / spec.name, storage)
    folder = home / (storage if storage is not None else spec.name)
    return Study(path, spec, folder, f"sqlite:///{folder / 'study.db'}")
