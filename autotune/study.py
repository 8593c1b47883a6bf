"""A study on disk: its file, its folder, its lock, its store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import ValidationError

from autotune.errors import NO_ROOM, Busy, EnvironmentFault, SpecError, StoreError
from autotune.spec.load import load_study
from autotune.spec.study import StudySpec
from autotune.store import FILE, MOVED, Store, shown

SAME = ("model", "revision", "engine.kind", "engine.args", "engine.env", "engine.simulate", "topology", "baseline",
        "load")  # fmt: skip
"""What records of one study must share; the rest of a study file may change between two runs."""


@dataclass(frozen=True)
class Study:
    """A study file that was read, and where its results go.

    Attributes:
        path: the study file.
        spec: its content.
        folder: logs and artifacts, and the database where `storage` names no other one.
        database: SQLAlchemy URL; a file of SQLite is absolute or below the working directory.
        overrides: what was laid over the file, as `--set` takes it.
    """

    path: Path
    spec: StudySpec
    folder: Path
    database: str
    overrides: tuple[str, ...] = ()

    @property
    def file(self) -> Path | None:
        """The database file; None for a server."""
        return Path(self.database.removeprefix(FILE)) if self.database.startswith(FILE) else None

    @property
    def lock(self) -> Path:
        """Held by whoever tunes; it stands beside the database, which two folders may share."""
        if self.file is None or self.file.parent == self.folder:
            return self.folder / "study.lock"
        return self.file.with_name(f"{self.file.name}.{self.spec.name}.lock")

    def store(self) -> Store:
        """Open the store; its folders are made.

        Raises:
            StoreError: it cannot be used; the message says what to do.
        """
        for folder in {self.folder, self.file.parent if self.file is not None else self.folder}:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StoreError(f"{folder} cannot be made: {error.strerror}. Choose another `storage:`.") from error
        return Store(self.database, self.spec.name)

    def existing_store(self) -> Store:
        """Open the store of a study that has been run.

        Raises:
            SpecError: it has never been run.
        """
        hint = f"run it first: autotune run {self.path}"
        where = self.file.parent if self.file == self.folder / "study.db" else self.file or shown(self.database)
        nothing = f"study {self.spec.name!r} has no results in {where}"
        if self.file is not None and not self.file.is_file():
            raise SpecError(nothing, file=self.path, hint=hint)
        store = self.store()
        if store.head() is None:
            others = ", ".join(store.names())
            store.close()
            hint += f"; or name one that is there: {others}" if others else ""
            raise SpecError(nothing, file=self.path, hint=hint)
        return store

    def as_measured(self, store: Store) -> Study:
        """The study with the model, load and fixed arguments that its records were measured with.

        A report and an exported file tell of records; the file may have been edited since, or run with `--set`.
        """
        head = store.head()
        try:
            kept = StudySpec.model_validate_json(head.spec) if head is not None else self.spec
        except ValidationError:
            return self  # of a version with other keys
        of_engine = [key.removeprefix("engine.") for key in SAME if key.startswith("engine.")]
        engine = self.spec.engine.model_copy(update={key: getattr(kept.engine, key) for key in of_engine})
        others = {key: getattr(kept, key) for key in SAME if "." not in key}
        return replace(self, spec=self.spec.model_copy(update={**others, "engine": engine}))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the study: one tuner at a time.

        Raises:
            Busy: another process tunes it.
            EnvironmentFault: the disk takes no more while it is held.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lock.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.lock, timeout=0)
            lock.acquire()
        except Timeout:
            raise Busy(
                f"study {self.spec.name!r} is being run by another process (lock {self.lock})",
                hint="wait for it, or look at it with: autotune status",
            ) from None
        except OSError as error:
            raise EnvironmentFault(
                f"{self.folder} cannot be written: {error.strerror}", hint="choose another `storage:`"
            ) from error
        try:
            yield
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not self.lock.exists():
                raise EnvironmentFault(f"{self.folder} {MOVED}") from error
            if error.errno not in NO_ROOM:
                raise
            where = f" ({error.filename})" if error.filename else ""
            raise EnvironmentFault(
                f"study {self.spec.name!r} cannot write: {error.strerror}{where}",
                hint=f"everything finished is kept: make room (df -h {self.folder}) and run the study again",
            ) from error
        finally:
            lock.release()


def open_study(path: Path | str, overrides: Sequence[str] = ()) -> Study:
    """Read a study file.

    Raises:
        SpecError: the file is wrong; file, line, key and what is legal are named.
    """
    path = Path(path)
    return replace(study_of(load_study(path, overrides), path), overrides=tuple(overrides))


def study_of(spec: StudySpec, path: Path) -> Study:
    """A study from a spec that is already read; `path` says where relative names start."""
    home = path.parent
    storage = spec.storage
    if storage is not None and storage.startswith(FILE):
        return Study(path, spec, home / spec.name, f"{FILE}{home / storage.removeprefix(FILE)}")
    if storage is not None and "://" in storage:
        return Study(path, spec, home / spec.name, storage.replace("postgresql://", "postgresql+psycopg://", 1))
    folder = home / (storage if storage is not None else spec.name)
    return Study(path, spec, folder, f"{FILE}{folder / 'study.db'}")
