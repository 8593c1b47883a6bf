"""The store keeps what it is given, knows what was killed, and says clearly when it cannot be used."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.engine.failure_values import Advice, Direction
from autotune.engine.protocol import Phase, Resolved
from autotune.errors import StoreError
from autotune.load.report import Estimate, Level, LevelReport, LoadReport
from autotune.outcome import Broken, Infeasible, Measured, Outcome, Proposal, TrialRecord
from autotune.quality.report import QualityCheck, QualityReport, QualityVerdict
from autotune.space.config import EngineConfig
from autotune.store import Store
from autotune.store.disk import advice

CONFIG = EngineConfig.of(
    {"max_num_seqs": 64, "gpu_memory_utilization": 0.92, "enable_prefix_caching": False, "cuda_graph_sizes": [1, 2]},
    {"VLLM_X": "1"},
)


def measured() -> Measured:
    level = LevelReport(
        level=Level("closed", 8.0),
        metrics=(
            ("output_throughput", Estimate(120.5, 118.0, 123.0, 20)),
            ("ttft_p95_ms", Estimate(900.0, 850.0, 990.0, 64)),
        ),
        requests=64,
        window_s=20.0,
        engine=(("preemptions", 0.0),),
    )
    check = QualityCheck(1, "kl", Estimate(0.001, 0.0, 0.002, 24), 0.02, 0.0005, QualityVerdict.PASSED)
    return Measured(LoadReport((level,)), QualityReport(QualityVerdict.PASSED, (check,), 0.0, "abc", 2.0))


OUTCOMES: list[Outcome] = [
    measured(),
    Infeasible(
        "oom_profiling",
        "out of memory",
        1.5,
        (("quantization", "fp8"),),
        (Advice("max_num_seqs", Direction.DOWN, "fewer"),),
    ),
    Broken("port_taken", "somebody took the port", retry=False, stop=True),
]


def record(number: int, outcome: Outcome) -> TrialRecord:
    return TrialRecord(
        number=number,
        proposal=Proposal(CONFIG, (("max_num_seqs", 64), ("kv_cache_dtype", None)), "expert", "from a recipe", 3),
        outcome=outcome,
        started_at=1_700_000_000.0,
        seconds=42.5,
        gpus=1,
        phases=(Phase("import", 12.5),),
        resolved=Resolved((("max_num_seqs", 64),), (), ("a note",), 1000, "0.32.0"),
        stage_seconds=(("start", 20.0), ("measure", 20.0)),
        folder=Path("/somewhere/trial-0001"),
        environment=(("gpu", "H100"),),
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.at(tmp_path, "s")
    store.open("{}", "fingerprint")
    return store


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: outcome.kind)
def test_a_record_comes_back_as_it_was(store: Store, outcome: Outcome) -> None:
    store.add(record(0, outcome))
    assert store.history() == (record(0, outcome),)


def test_history_is_in_order_and_survives_a_new_connection(store: Store, tmp_path: Path) -> None:
    for number in (0, 1, 2):
        store.add(record(number, OUTCOMES[number]))
    store.close()
    again = Store.at(tmp_path, "s")
    assert [item.number for item in again.history()] == [0, 1, 2]
    assert again.next_number() == 3


def test_a_begun_trial_without_a_record_was_interrupted(store: Store) -> None:
    store.begin(0, 1, record(0, OUTCOMES[0]).proposal)
    store.begin(1, 2, record(1, OUTCOMES[0]).proposal)
    store.add(record(0, OUTCOMES[0]))
    (lost,) = store.interrupted()
    assert (lost.number, lost.attempt, lost.proposal.config) == (1, 2, CONFIG)
    assert store.next_number() == 2


def test_a_number_is_never_used_twice(store: Store) -> None:
    store.add(record(0, OUTCOMES[0]))
    with pytest.raises(StoreError, match="UNIQUE"):
        store.add(record(0, OUTCOMES[1]))
    assert store.history() == (record(0, OUTCOMES[0]),)


def test_figures_can_be_asked_for_in_plain_sql(store: Store, tmp_path: Path) -> None:
    store.add(record(0, OUTCOMES[0]))
    with sqlite3.connect(tmp_path / "study.db") as connection:
        rows = connection.execute("select metric, value from autotune_measurement where level = 'c=8'").fetchall()
        phases = connection.execute("select name, seconds from autotune_phase where kind = 'start'").fetchall()
    assert dict(rows) == {"output_throughput": 120.5, "ttft_p95_ms": 900.0}
    assert phases == [("import", 12.5)]


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    """In a URL a question mark ends a path, and the records went into a file of another name."""
    folder = tmp_path / "what? #1 %20 {a} ä"
    Store.at(folder, "s").close()
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert (folder / "study.db").is_file()


def test_what_cannot_be_written_can_be_read(small_disk: Path) -> None:
    """An archive, or the study of another person."""
    kept = Store.at(small_disk / "a?b", "s")
    kept.open("{}", "")
    kept.add(record(0, measured()))
    kept.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    try:
        assert Store.at(small_disk / "a?b", "s").history() == (record(0, measured()),)
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)


def test_two_studies_share_a_database_without_mixing(tmp_path: Path) -> None:
    first, second = Store.at(tmp_path, "a"), Store.at(tmp_path, "b")
    first.open("{}", "f")
    second.open("{}", "f")
    first.add(record(0, OUTCOMES[0]))
    assert second.history() == ()
    assert second.next_number() == 0


def test_documents_keep_the_latest(store: Store) -> None:
    store.put("quality", "k", "1")
    store.put("quality", "k", "2")
    assert store.get("quality", "k") == "2"
    assert store.get("quality", "other") is None


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_text("this is not a database, it is far too long and far too friendly" * 20)
    with pytest.raises(StoreError, match=r"study\.db.*not a database"):
        Store.at(tmp_path, "s")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB, where this user may mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], capture_output=True)
    if made.returncode != 0:
        pytest.skip("nothing can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as stream, pytest.raises(OSError, match="No space"):
        while True:
            stream.write(b"\0" * 4096)
    return ballast


def test_a_full_disk_takes_no_finished_trial_and_says_what_to_do(small_disk: Path) -> None:
    store = Store.at(small_disk, "s")
    store.open("{}", "fingerprint")
    ballast = fill(small_disk)
    store.add(record(0, measured()))  # the room that was set aside
    fill(small_disk)
    with pytest.raises(StoreError, match=r"(?s)study\.db: .*(full|I/O).*\n  .*df -h .*small.* run the study again"):
        for number in range(1, 20):
            store.add(record(number, measured()))
    store.close()
    ballast.unlink()
    again = Store.at(small_disk, "s")
    again.open("{}", "fingerprint")
    assert again.history()[0] == record(0, measured())
    again.add(record(99, measured()))
    again.close()
    assert {path.name for path in small_disk.iterdir()} == {"study.db"}, "the room is given back"


def test_a_study_does_not_begin_on_a_full_disk(small_disk: Path) -> None:
    store = Store.at(small_disk, "s")
    fill(small_disk)
    with pytest.raises(StoreError, match=r"has no room for a study: No space left on device\n  Make room"):
        store.open("{}", "fingerprint")
    store.close()
    assert not list(small_disk.glob("*.reserve"))


@pytest.mark.parametrize(
    ("cause", "wanted"),
    [
        ("database or disk is full", "df -h /data"),
        ("disk I/O error", "dmesg"),
        ("attempt to write a readonly database", "/data/study.db and its folder writable"),
        ("unable to open database file", "ls -ld /data"),
        ("database is locked", "fuser /data/study.db"),
        ("database disk image is malformed", ".recover"),
    ],
)
def test_every_error_of_the_disk_has_its_advice(cause: str, wanted: str) -> None:
    assert wanted in advice("sqlite:////data/study.db", cause)
    assert advice("postgresql://host/db", cause) == ""


def test_a_newer_schema_is_refused(store: Store, tmp_path: Path) -> None:
    store.close()
    with sqlite3.connect(tmp_path / "study.db") as connection:
        connection.execute("update autotune_schema set version = 99")
    with pytest.raises(StoreError, match="newer autotune"):
        Store.at(tmp_path, "s")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("update autotune_trial set record = '{}'", "trial 0 cannot be read: number: Field required"),
        ("update autotune_trial set record = 'x'", "trial 0 cannot be read: Invalid JSON"),
        ("update autotune_started set proposal = '{}'", "the start of trial 1 cannot be read"),
        ("update autotune_document set body = 'x'", r"its kind \(key\) cannot be read"),
        ("update autotune_study set spec = '{'", "the study file that it was run with cannot be read"),
    ],
)
def test_what_another_version_wrote_is_named(store: Store, tmp_path: Path, change: str, what: str) -> None:
    store.add(record(0, measured()))
    store.begin(1, 1, Proposal(CONFIG, (), "search"))
    store.put("kind", "key", "1")
    with sqlite3.connect(tmp_path / "study.db") as connection:
        connection.execute(change)
    with pytest.raises(StoreError, match=f"{what}.*\n  It was changed by hand or written by another version"):
        _read_all(store)


def _read_all(store: Store) -> None:
    store.head()
    store.history()
    store.interrupted()
    store.read("kind", "key", int)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="storage"):
        Store.at(tmp_path / "file" / "deeper", "s")
