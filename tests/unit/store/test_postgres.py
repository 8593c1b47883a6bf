"""The store and Optuna's tables on a PostgreSQL of the test's own. Skipped, with the reason, where there is none."""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import EnvironmentFault, StoreError
from autotune.outcome import Measured, Proposal
from autotune.space.config import EngineConfig
from autotune.store import Store
from autotune.study import open_study
from autotune.testing.toy import measured, record_of
from tests.desk import STUDY

PASSWORD = secrets.token_hex(12)


def binaries() -> Path | None:
    """Where `initdb` and `postgres` are; Debian keeps them off the PATH."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = next((folder for folder in folders if (folder / "postgres").is_file()), None)
    return found or (Path(where).parent if (where := shutil.which("postgres")) else None)


def account() -> str | None:
    """PostgreSQL refuses to run as root; Debian's package brings a user."""
    if os.getuid() != 0:
        return pwd.getpwuid(os.getuid()).pw_name
    return next((one.pw_name for one in pwd.getpwall() if one.pw_name == "postgres"), None)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a database that asks for a password, without the password."""
    folder, user = binaries(), account()
    if folder is None or user is None:
        pytest.skip("PostgreSQL is not installed (apt install postgresql)")
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("psycopg is not installed: pip install 'vllm-autotune[postgres]'")
    home = Path(subprocess.check_output(["mktemp", "-d", "-t", "autotune-pg-XXXXXX"], text=True).strip())
    secret = home / "password"
    secret.write_text(PASSWORD)
    for path in (home, secret):
        shutil.chown(path, user)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data = str(home / "data")
    run = {"user": user, "cwd": home, "check": True, "capture_output": True} if os.getuid() == 0 else {
        "cwd": home, "check": True, "capture_output": True}  # fmt: skip
    try:
        subprocess.run(
            [folder / "initdb", "-D", data, "-U", "tuner", "-A", "scram-sha-256", f"--pwfile={secret}", "-N",
             "-E", "UTF8", "--locale=C"], **run)  # fmt: skip
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
        start = [folder / "pg_ctl", "-D", data, "-w", "-o", options, "-l", str(home / "log"), "start"]
        subprocess.run(start, **{**run, "capture_output": False, "stdout": subprocess.DEVNULL})
        try:
            yield f"postgresql://tuner@127.0.0.1:{port}/postgres"
        finally:
            subprocess.run([folder / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop"], **run)
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)


def driver_url(server: str) -> str:
    return server.replace("postgresql://", "postgresql+psycopg://")


def test_records_and_documents_come_back(server: str, known: None) -> None:
    store = Store(driver_url(server), "one")
    store.open('{"name": "one"}', "f" * 12)
    proposal = Proposal(EngineConfig.of({"max_num_seqs": 8, "quantization": None, "enforce_eager": True}))
    store.begin(0, 1, proposal)
    assert [lost.number for lost in store.interrupted()] == [0]
    record = replace(record_of(0, proposal, measured({"output_throughput": 1234.5})), place=3, node="far")
    store.add(record)
    store.put("quality", "k" * 300, "first")
    store.put("quality", "k" * 300, "é \\ second")
    assert store.interrupted() == () and store.next_number() == 1
    store.close()
    again = Store(driver_url(server), "one")
    assert again.history() == (record,)
    assert again.get("quality", "k" * 300) == "é \\ second"
    again.close()


def test_a_study_has_one_driver_and_a_database_many(server: str, known: None) -> None:
    first, second, other = (Store(driver_url(server), name) for name in ("held", "held", "free"))
    for store in (first, other):
        store.open("{}", "f" * 12)
    assert first.claim() and first.claim()
    assert not second.claim()
    assert other.claim()
    first.close()
    assert second.claim(), "what a driver held is free when it is gone"
    second.close()
    other.close()


def test_the_password_is_asked_for_and_never_shown(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "wrong-" + PASSWORD)
    with pytest.raises(StoreError) as caught:
        Store(driver_url(server), "one")
    assert "password authentication failed" in str(caught.value) and PASSWORD not in str(caught.value)


async def test_a_study_runs_and_goes_on_there(server: str, known: None, tmp_path: Path) -> None:
    from autotune.assembly import assemble
    from autotune.events import Silent
    from autotune.run import StudyRun
    from tests.unit.test_places import Pretended

    path = tmp_path / "tiny.yaml"
    path.write_text(STUDY + f"storage: {server}\n")
    study = open_study(path, ["search.trials=3", "confirm.rounds=0"])
    for _ in range(2):
        parts = await assemble(study)
        with pytest.raises(EnvironmentFault, match="another driver"):
            await assemble(study)
        result = await StudyRun(parts, parts.store, Silent(), Pretended()).run()
        parts.close()
    assert sum(isinstance(record.outcome, Measured) for record in result.records) == 3
    assert not list(tmp_path.rglob("*.db"))
    written = b"".join(one.read_bytes() for one in tmp_path.rglob("*") if one.is_file())
    assert PASSWORD.encode() not in written
    store = study.existing_store()
    head = store.head()
    assert head is not None and PASSWORD not in head.spec and "tuner@127.0.0.1" in head.spec
    store.close()
