"""The study in optuna-dashboard: nothing infeasible looks good, nothing secret leaves, nobody else may look."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from autotune.cli.dashboard import ShownStudy
from autotune.errors import EnvironmentFault
from autotune.load.records import Records
from autotune.load.wire import RECORD_FIELDS
from autotune.outcome import Infeasible, Measured
from autotune.report.loadplot import load_plot, read_samples
from autotune.report.serving import served
from autotune.search.front import front_of
from autotune.search.objectives import Objectives
from autotune.store import Store
from autotune.study import Study
from autotune.testing.history import HOSTILE, SECRET, history_spec, made_up_history

from .conftest import stored


def get(url: str, **headers: str) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as answer:
        body: bytes = answer.read()
        return body


@pytest.fixture(scope="module")
def long_study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("dashboard")
    records = made_up_history(120, folder=folder / "made-up")
    study = stored(folder, records)
    first = study.folder / "trial-0000"
    first.mkdir()
    (first / "engine.log").write_text(f"started with --api-key {SECRET}\nready\n")
    return study


@pytest.fixture(scope="module")
def shown(long_study: Study) -> Iterator[tuple[str, dict[str, object]]]:
    """The address of the dashboard and what it answers for the study."""
    store = long_study.existing_store()
    made = ShownStudy(long_study, store)
    made.refresh()
    with served(made.board.app(), 0) as address:
        body = json.loads(get(f"{address}/api{made.board.path.removeprefix('/dashboard')}"))
        yield address, body
    store.close()


Body = tuple[str, dict[str, object]]


def trials(shown: Body) -> list[dict[str, object]]:
    found = shown[1]["trials"]
    assert isinstance(found, list)
    return found


def attributes(trial: dict[str, object]) -> dict[str, str]:
    rows = trial["user_attrs"]
    assert isinstance(rows, list)
    return {row["key"]: row["value"] for row in rows}


def test_every_record_is_a_trial_with_a_note(shown: Body) -> None:
    assert len(trials(shown)) == 120
    for trial in trials(shown):
        note = trial["note"]
        assert isinstance(note, dict) and note["body"].startswith(f"# Trial {trial['number']}")
        assert SECRET not in note["body"] and "<script" not in note["body"]


def test_what_could_not_serve_has_the_worst_values(shown: Body, long_study: Study) -> None:
    store = long_study.existing_store()
    records = store.history()
    store.close()
    objectives = Objectives.of(long_study.spec)
    measured = [values for record in records if (values := objectives.values(record)) is not None]
    checked = 0
    for trial, record in zip(trials(shown), records, strict=True):
        if not isinstance(record.outcome, Infeasible):
            continue
        throughput, ttft = (float(value) for value in trial["values"])  # type: ignore[union-attr, attr-defined]
        so_far = [values for one in records[: record.number] if (values := objectives.values(one)) is not None]
        assert throughput == pytest.approx(min(value for value, _ in so_far))
        assert ttft == pytest.approx(max(value for _, value in so_far))
        checked += 1
    assert checked > 5 and measured


def test_the_front_of_the_dashboard_knows_what_breaks_a_limit(shown: Body, long_study: Study) -> None:
    store = long_study.existing_store()
    records = store.history()
    store.close()
    objectives = Objectives.of(long_study.spec)
    for trial, record in zip(trials(shown), records, strict=True):
        constraints = trial["constraints"]
        assert isinstance(constraints, list) and constraints
        assert all(value <= 0 for value in constraints) == objectives.feasible(record)
        assert attributes(trial)["usable"].startswith("yes" if objectives.feasible(record) else "no: ")


def test_the_study_s_note_lists_the_feasible_front_and_warns(shown: Body, long_study: Study) -> None:
    store = long_study.existing_store()
    front = front_of(store.history(), Objectives.of(long_study.spec))
    store.close()
    note = shown[1]["note"]
    assert isinstance(note, dict)
    for record in front:
        assert f"| {record.number} |" in note["body"]
    assert "Most plots of the dashboard know no limits" in note["body"]


def test_attributes_are_readable(shown: Body) -> None:
    found = attributes(trials(shown)[0])
    assert float(found["TTFT p95 at c=128 (ms)"]) > 0
    assert found["role"] == "baseline"


def test_files_are_given_without_secrets(shown: Body) -> None:
    address, _ = shown
    first = trials(shown)[0]
    files = {one["filename"]: one["artifact_id"] for one in first["artifacts"]}  # type: ignore[attr-defined]
    assert files.keys() == {"engine.log", "load-report.json"}
    place = f"{address}/artifacts/{first['study_id']}/{first['trial_id']}"
    log = get(f"{place}/{files['engine.log']}").decode()
    assert "ready" in log and SECRET not in log
    load = json.loads(get(f"{place}/{files['load-report.json']}"))
    assert [level["level"]["value"] for level in load["levels"]] == [16.0, 64.0, 128.0]


def test_pages_from_elsewhere_get_nothing(shown: Body) -> None:
    address = shown[0]
    for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Host": "["}):
        with pytest.raises(urllib.error.HTTPError) as refused:
            get(f"{address}/api/studies", **headers)
        assert refused.value.code == 403
    port = address.rpartition(":")[2]
    assert get(f"{address}/api/studies", Host=f"localhost:{port}", Origin=f"http://localhost:{port}")


def test_a_taken_port_is_told(shown: Body) -> None:
    port = int(shown[0].rpartition(":")[2])
    with (
        pytest.raises(EnvironmentFault, match=r"port \d+ cannot be used[\s\S]*another --port"),
        served(lambda e, s: [], port),
    ):
        pass
    with pytest.raises(EnvironmentFault, match="no such port"), served(lambda e, s: [], 70000):
        pass


def test_trials_of_a_running_study_appear(tmp_path: Path) -> None:
    records = made_up_history(20)
    study = stored(tmp_path, records[:12])
    store = study.existing_store()
    made = ShownStudy(study, store)
    assert made.refresh() == 12
    assert made.refresh() == 0
    writer = Store.at(study.folder, study.spec.name)
    for record in records[12:]:
        writer.add(record)
    writer.close()
    assert made.refresh() == 8
    store.close()


def test_nothing_is_written_for_a_dashboard(tmp_path: Path) -> None:
    study = stored(tmp_path, made_up_history(40, folder=tmp_path / "made-up"))
    store = study.existing_store()
    assert ShownStudy(study, store).refresh() == 40
    store.close()
    assert [file.name for file in study.folder.iterdir() if not file.name.startswith("study.db")] == []


def test_a_plot_of_the_load_is_drawn_from_its_samples(tmp_path: Path) -> None:
    sent = np.linspace(0, 30, 200)
    rows = np.full((200, len(RECORD_FIELDS)), np.nan)
    rows[:, RECORD_FIELDS.index("sent")] = sent
    rows[:, RECORD_FIELDS.index("first")] = sent + 0.25
    rows[:, RECORD_FIELDS.index("completion_tokens")] = 4
    chunks = (sent[:, None] + 0.25 + np.arange(4) * 0.1).ravel()
    records = Records(rows, chunks, np.arange(201) * 4, np.zeros(1), {}, {}, 0.1, 31.0)
    records.save(tmp_path / "level-0.npz")
    samples = read_samples(tmp_path / "level-0.npz")
    assert samples is not None and samples.ttft_ms == pytest.approx(np.full(200, 250.0))
    assert samples.tokens.sum() == pytest.approx(800)
    picture = load_plot(samples, f"load {HOSTILE}")
    assert picture.count("<circle") == 200 and "<script" not in picture and "<img" not in picture


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 no zip", b"\x93NUMPY"])
def test_damaged_samples_give_no_plot(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "level-0.npz").write_bytes(damage)
    assert read_samples(tmp_path / "level-0.npz") is None
    assert read_samples(tmp_path / "gone.npz") is None


def test_the_made_up_study_is_what_the_tests_take_it_for() -> None:
    kinds = {type(record.outcome) for record in made_up_history(40)}
    assert Measured in kinds and Infeasible in kinds and history_spec().slos
