"""Finished studies as the benchmarks read them."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from autotune.outcome import TrialRecord
from autotune.spec.study import StudySpec
from autotune.store.store import Store


def stored(database: Path) -> tuple[StudySpec, tuple[TrialRecord, ...]]:
    """The one study in a database and all its trials; it is read as a copy, since opening a store writes."""
    with tempfile.TemporaryDirectory(prefix="agreement-") as folder:
        copy = shutil.copy(database, folder)
        with closing(sqlite3.connect(copy)) as connection:
            name, spec = connection.execute("select name, spec from autotune_study").fetchone()
        store = Store(f"sqlite:///{copy}", name)
        try:
            return StudySpec.model_validate_json(spec), store.history()
        finally:
            store.close()
