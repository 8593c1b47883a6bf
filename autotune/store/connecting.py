"""How a database is connected to, by its URL, and what is asked of it before it is used."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autotune.errors import StoreError
from autotune.store import tables

FILE = "sqlite:///"
"""A database in a file: the path follows, in a study relative to its file or with a fourth stroke absolute."""


def connected(url: str) -> sa.Engine:
    """Connections to a database; a server that was restarted meanwhile is connected to again."""
    if url.startswith("sqlite"):
        return sa.create_engine(_address(url), connect_args={"timeout": 30})
    try:
        return sa.create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": 30})
    except ModuleNotFoundError as error:
        raise StoreError(
            f"database {shown(url)}: {error.name} is not installed\n  use: pip install 'vllm-autotune[postgres]'"
        ) from error


def _address(url: str) -> sa.URL:
    """Where a database in a file is. Its path is taken as it is: in a URL a question mark in it would end it.

    A file that cannot be written, of an archive or of another person, is read as it stands. Without its write-ahead
    log nobody writes into it, and SQLite need not make files beside it, which it could not.
    """
    if not url.startswith(FILE):
        return sa.make_url(url)
    file = Path(url.removeprefix(FILE))
    if not file.is_file() or (os.access(file, os.W_OK) and os.access(file.parent, os.W_OK)):
        return sa.URL.create("sqlite", database=str(file))
    query = {"mode": "ro", "uri": "true"}
    if not file.with_name(f"{file.name}-wal").exists():
        query["immutable"] = "1"
    return sa.URL.create("sqlite", database=f"file:{quote(str(file.absolute()))}", query=query)


def durable(connection: object, _record: object) -> None:
    """SQLite: readers never block the writer, and a finished trial survives a power cut."""
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def check_version(connection: Connection, url: str) -> None:
    """Mark a new database with our schema's version.

    Raises:
        StoreError: a newer autotune wrote it.
    """
    found = connection.execute(sa.select(tables.schema.c.version)).scalar()
    if found is None:
        connection.execute(tables.schema.insert().values(version=tables.SCHEMA_VERSION))
    elif found > tables.SCHEMA_VERSION:
        raise StoreError(f"database {shown(url)} was written by a newer autotune (schema {found}); upgrade this one")


def shown(url: str) -> str:
    """A database's URL without a password."""
    if url.startswith(FILE):
        return url
    return sa.make_url(url).render_as_string(hide_password=True)
