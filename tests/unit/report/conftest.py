"""A made-up study on disk and in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from autotune.outcome import TrialRecord
from autotune.report.content import gather
from autotune.report.values import ReportContent
from autotune.store import Store
from autotune.study import Study, open_study
from autotune.testing.history import history_spec, made_up_history

STUDY = """
name: made-up
model: example/made-up-8b
load: {levels: [16, 64, 128], input_tokens: 1024, output_tokens: 256}
slos: [{metric: ttft, percentile: 95, limit: 1500ms}]
"""


@pytest.fixture(scope="session")
def records() -> tuple[TrialRecord, ...]:
    return made_up_history(60)


@pytest.fixture(scope="session")
def content(records: tuple[TrialRecord, ...]) -> ReportContent:
    return gather(history_spec(), records)


def stored(folder: Path, records: Sequence[TrialRecord], text: str = STUDY) -> Study:
    """A study file in `folder` whose store holds `records`."""
    file = folder / "study.yaml"
    file.write_text(text)
    study = open_study(file)
    store = Store.at(study.folder, study.spec.name)
    store.open(study.spec.model_dump_json(), "fingerprint")
    for record in records:
        store.add(record)
    store.close()
    return study


@pytest.fixture
def study(tmp_path: Path, records: tuple[TrialRecord, ...]) -> Study:
    return stored(tmp_path, records)
