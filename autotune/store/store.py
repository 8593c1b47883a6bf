"""The study's database: write a record, read the history, know what was running when we died."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa
from pydantic import TypeAdapter, ValidationError
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from autotune.errors import StoreError
from autotune.outcome import Measured, Proposal, TrialRecord
from autotune.store import tables
from autotune.store.connecting import FILE, check_version, connected, durable, shown
from autotune.store.disk import Reserve, advice

MOVED = (
    "was moved, replaced or deleted while the study runs\n"
    "  put it back where it was and run the study again: what was finished before is in it"
)
UNREADABLE = (
    "It was changed by hand or written by another version of autotune: use that version, restore the file from a "
    "backup, or go on with another `storage:`. Nothing in it was changed."
)
T = TypeVar("T")

_RECORD: TypeAdapter[TrialRecord] = TypeAdapter(TrialRecord)
_PROPOSAL: TypeAdapter[Proposal] = TypeAdapter(Proposal)


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A trial that was started and never finished: its driver was killed."""

    number: int
    attempt: int
    proposal: Proposal
    started_at: float


@dataclass(frozen=True, slots=True)
class StudyRow:
    """The head of a study. `spec` is the study file's resolved content as JSON."""

    name: str
    spec: str
    space_fingerprint: str
    created_at: float


class Store:
    """One study in one database.

    Args:
        url: SQLAlchemy URL; for SQLite the file's folder must exist.
        name: the study's name.

    Every write is one transaction. A finished trial is on the disk when `add` returns.

    Raises:
        StoreError: from every method, when the database cannot be used; the message says what to do.
    """

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.name = name
        self._reserve = Reserve(Path(f"{url.removeprefix(FILE)}.{name}.reserve")) if url.startswith(FILE) else None
        self._tuning = False
        """It was opened for writing here: the room set aside is ours."""
        self._inode: int | None = None
        self._claim: Connection | None = None
        self._engine = connected(url)
        if url.startswith("sqlite"):
            sa.event.listen(self._engine, "connect", durable)
        with self._transaction() as connection:
            tables.metadata.create_all(connection)
            check_version(connection, url)

    @classmethod
    def at(cls, folder: Path, name: str) -> Store:
        """The store in `folder/study.db`; the folder is made."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{folder} cannot be made: {error.strerror}. Choose another `storage:`.") from error
        return cls(f"{FILE}{folder / 'study.db'}", name)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            cause = str(getattr(error, "orig", None) or error).splitlines()[0]
            raise StoreError(f"database {shown(self.url)}: {cause}{advice(self.url, cause)}") from error

    def close(self) -> None:
        """Close all connections; what was claimed is free again."""
        if self._claim is not None:
            self._claim.close()
        if self._reserve is not None and self._tuning:
            self._reserve.give()
        self._engine.dispose()

    def claim(self) -> bool:
        """Hold the study in a database that several hosts share, until `close` or until this process is gone.

        Returns:
            False where another driver holds it. On SQLite the study's lock file does the same.
        """
        if self._engine.dialect.name != "postgresql" or self._claim is not None:
            return True
        try:
            connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            key = sa.func.hashtextextended(self.name, 0)
            held = bool(connection.execute(sa.select(sa.func.pg_try_advisory_lock(key))).scalar())
        except SQLAlchemyError as error:
            raise StoreError(f"database {shown(self.url)}: {str(error).splitlines()[0]}") from error
        if held:
            self._claim = connection
        else:
            connection.close()
        return held

    # -- the study ---------------------------------------------------------------------------------------------------

    def head(self) -> StudyRow | None:
        """The study's head, or None where it was never opened for writing."""
        table = tables.study
        with self._transaction() as connection:
            row = connection.execute(sa.select(table).where(table.c.name == self.name)).first()
        if row is None:
            return None
        self._parsed(row.spec, json.loads, "the study file that it was run with")
        return StudyRow(row.name, row.spec, row.space_fingerprint, row.created_at)

    def names(self) -> tuple[str, ...]:
        """The studies that the database holds."""
        with self._transaction() as connection:
            return tuple(connection.execute(sa.select(tables.study.c.name).order_by(tables.study.c.id)).scalars())

    def open(self, spec: str, space_fingerprint: str) -> None:
        """Write the study's head, or take up the one that is there (its spec is brought up to date).

        Sets room aside for the record of one trial, so that a disk that fills up takes no finished trial.
        """
        if self._reserve is not None:
            self._reserve.take()
            self._tuning = True
            self._inode = self._file_inode()
        table = tables.study
        with self._transaction() as connection:
            found = connection.execute(sa.select(table.c.id).where(table.c.name == self.name)).scalar()
            values = {"spec": spec, "space_fingerprint": space_fingerprint}
            if found is None:
                connection.execute(table.insert().values(name=self.name, created_at=time.time(), **values))
            else:
                connection.execute(table.update().where(table.c.id == found).values(**values))

    def _file_inode(self) -> int | None:
        """Which file stands where the database was opened for writing; 0 where there is none."""
        if not self._tuning:
            return None
        try:
            return Path(self.url.removeprefix(FILE)).stat().st_ino
        except OSError:
            return 0

    def _study_id(self, connection: Connection) -> int:
        table = tables.study
        found = connection.execute(sa.select(table.c.id).where(table.c.name == self.name)).scalar()
        if found is None:
            raise StoreError(f"database {shown(self.url)} holds no study {self.name!r}")
        return int(found)

    # -- trials ------------------------------------------------------------------------------------------------------

    def begin(self, number: int, attempt: int, proposal: Proposal) -> None:
        """Note that a trial is about to run, so that a killed one is known after a restart."""
        if self._inode != self._file_inode():
            # SQLite would go on in the file that it has open, which may be deleted.
            raise StoreError(f"database {shown(self.url)} {MOVED}")
        with self._transaction() as connection:
            connection.execute(
                tables.started.insert().values(
                    study_id=self._study_id(connection),
                    number=number,
                    attempt=attempt,
                    proposal=_PROPOSAL.dump_json(proposal).decode(),
                    started_at=time.time(),
                )
            )

    def add(self, record: TrialRecord) -> None:
        """Keep a finished trial, on a full disk with the room that was set aside for it."""
        try:
            self._add(record)
        except StoreError:
            if self._reserve is None or not self._reserve.give():
                raise
            self._add(record)

    def _add(self, record: TrialRecord) -> None:
        outcome = record.outcome
        with self._transaction() as connection:
            result = connection.execute(
                tables.trial.insert().values(
                    study_id=self._study_id(connection),
                    number=record.number,
                    config_hash=record.config.hash,
                    origin=record.proposal.origin,
                    outcome=outcome.kind,
                    cause=None if isinstance(outcome, Measured) else outcome.cause,
                    reason=None if isinstance(outcome, Measured) else outcome.reason,
                    arguments=json.dumps(record.config.to_dict()),
                    resolved=json.dumps(dict(record.resolved.values)) if record.resolved else None,
                    started_at=record.started_at,
                    seconds=record.seconds,
                    gpus=record.gpus,
                    restarted=record.restarted,
                    record=_RECORD.dump_json(record).decode(),
                )
            )
            key = result.inserted_primary_key
            trial_id = int(key[0]) if key else 0
            for table, rows in _details(record):
                if rows:
                    connection.execute(table.insert(), [{"trial_id": trial_id, **row} for row in rows])

    def history(self) -> tuple[TrialRecord, ...]:
        """All finished trials in order."""
        table = tables.trial
        with self._transaction() as connection:
            rows = connection.execute(
                sa.select(table.c.number, table.c.record)
                .join(tables.study, tables.study.c.id == table.c.study_id)
                .where(tables.study.c.name == self.name)
                .order_by(table.c.number)
            ).all()
        return tuple(self._parsed(row.record, _RECORD.validate_json, f"trial {row.number}") for row in rows)

    def interrupted(self) -> tuple[Interrupted, ...]:
        """Trials that were begun and never finished."""
        begun, done = tables.started, tables.trial
        with self._transaction() as connection:
            study_id = self._study_id(connection)
            finished = sa.select(done.c.number).where(done.c.study_id == study_id)
            rows = connection.execute(
                sa.select(begun)
                .where(begun.c.study_id == study_id, begun.c.number.not_in(finished))
                .order_by(begun.c.number)
            ).all()
        return tuple(
            Interrupted(
                row.number,
                row.attempt,
                self._parsed(row.proposal, _PROPOSAL.validate_json, f"the start of trial {row.number}"),
                row.started_at,
            )
            for row in rows
        )

    def next_number(self) -> int:
        """The first trial number that was never used."""
        with self._transaction() as connection:
            study_id = self._study_id(connection)
            used = [
                connection.execute(sa.select(sa.func.max(table.c.number)).where(table.c.study_id == study_id)).scalar()
                for table in (tables.started, tables.trial)
            ]
        return max((number + 1 for number in used if number is not None), default=0)

    # -- documents ---------------------------------------------------------------------------------------------------

    def put(self, kind: str, key: str, body: str) -> None:
        """Append a JSON document; the latest one of a kind and key counts."""
        with self._transaction() as connection:
            connection.execute(
                tables.document.insert().values(
                    study_id=self._study_id(connection), kind=kind, key=key, body=body, created_at=time.time()
                )
            )

    def get(self, kind: str, key: str) -> str | None:
        """The latest document of a kind and key."""
        table = tables.document
        with self._transaction() as connection:
            body = connection.execute(
                sa.select(table.c.body)
                .join(tables.study, tables.study.c.id == table.c.study_id)
                .where(tables.study.c.name == self.name, table.c.kind == kind, table.c.key == key)
                .order_by(table.c.id.desc())
                .limit(1)
            ).scalar()
        return str(body) if body is not None else None

    def read(self, kind: str, key: str, parse: Callable[[str], T]) -> T | None:
        """The latest document of a kind and key as a value.

        Args:
            parse: raises ValueError where the text is of another version.
        """
        body = self.get(kind, key)
        return self._parsed(body, parse, f"its {kind} ({key})") if body is not None else None

    def _parsed(self, text: str, parse: Callable[[str], T], what: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            told = error.errors(include_url=False, include_input=False) if isinstance(error, ValidationError) else ()
            cause = ": ".join((".".join(map(str, told[0]["loc"])), told[0]["msg"])).lstrip(": ") if told else error
            raise StoreError(f"database {shown(self.url)}: {what} cannot be read: {cause}\n  {UNREADABLE}") from None

    def documents(self, kind: str) -> Sequence[tuple[str, str]]:
        """All documents of a kind as (key, body), oldest first."""
        table = tables.document
        with self._transaction() as connection:
            rows = connection.execute(
                sa.select(table.c.key, table.c.body)
                .join(tables.study, tables.study.c.id == table.c.study_id)
                .where(tables.study.c.name == self.name, table.c.kind == kind)
                .order_by(table.c.id)
            ).all()
        return [(row.key, row.body) for row in rows]


Rows = list[dict[str, str | float | int | None]]


def _details(record: TrialRecord) -> Iterator[tuple[sa.Table, Rows]]:
    """The rows that make a record searchable by SQL; the record's JSON holds the same and more."""
    phases: Rows = [{"kind": "start", "name": item.name, "seconds": item.seconds} for item in record.phases]
    phases += [{"kind": "stage", "name": name, "seconds": seconds} for name, seconds in record.stage_seconds]
    yield tables.phase, phases
    yield tables.fingerprint, [{"name": name, "value": value} for name, value in record.environment]
    if isinstance(record.outcome, Measured):
        yield (
            tables.measurement,
            [
                {"level": str(item.level), "level_value": item.level.value, "metric": key, "value": estimate.value,
                 "low": estimate.low, "high": estimate.high, "n": estimate.n}
                for item in record.outcome.load.levels
                for key, estimate in item.metrics
            ],
        )  # fmt: skip
