"""A year of the real service, driver, store and engines (the simulator's) on a fast clock, killed again and again."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from autotune.retune.ledger import Entry, PassEnded, StoreLedger, SwitchEnded
from autotune.retune.state import State
from autotune.study import open_study
from tests.desk import Desk
from tests.e2e import retune_year as host

pytestmark = [pytest.mark.long, pytest.mark.timeout(3000)]

STUDY = """\
name: year
model: llama-3.1-8b
engine:
  kind: command
  command: {start: [PYTHON, HOST, engine, FOLDER, "{port}", "{name}", "{args}"]}
hardware: {gpus: 0}
space: {parameters: {max_num_seqs: {ladder: [2, 4, 8]}}}
baseline: {args: {max_num_seqs: 2}}
load:
  input_tokens: 64
  output_tokens: 16
  levels: [8]
  warmup: {requests: 8, max_duration: 2s, tolerance: 50%}
  window: {duration: 2s, requests: 30}
  stop_hopeless: false
objectives: [{metric: output_throughput}]
quality: {enabled: false}
search: {trials: 3, experts: false, sentinel_every: 0, proposer: grid}
confirm: {rounds: 3, finalists: 1, minimise: false}
retune:
  cron: "0 3 1 * *"
  timezone: Europe/Berlin
  windows: [{opens: "02:00", closes: "08:00"}]
  jitter: 10m
  budget: {configurations: 3, time: 1h}
  triggers: {metrics_url: "URL", watch: 100ms, canary_drop: 12%}  # other work on these cores is no drift
  hooks: {before: [{command: [sleep, "0.5"]}], after: [{command: [sleep, "0.5"]}]}
"""
KILLS = 10


@pytest.fixture
def year(desk: Desk) -> Iterator[Desk]:
    users = host.users(desk.folder)
    threading.Thread(target=users.serve_forever, daemon=True).start()
    places = {"PYTHON": sys.executable, "HOST": host.__file__, "FOLDER": str(desk.folder),
              "URL": f"http://127.0.0.1:{users.server_port}"}  # fmt: skip
    text = STUDY
    for word, place in places.items():
        text = text.replace(word, place)
    desk.write(text, "year.yaml")
    host.set_clock(desk.folder, host.BEGIN)
    desk.variables["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = desk.run("run", "year.yaml", timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    yield desk
    users.shutdown()
    users.server_close()


def serve(desk: Desk) -> subprocess.Popen[str]:
    log = (desk.folder / "service.log").open("a")
    process = subprocess.Popen(
        [sys.executable, host.__file__, "serve", str(desk.folder)], cwd=desk.folder, env=desk.environment(), text=True,
        stdout=log, stderr=subprocess.STDOUT, process_group=0,
    )  # fmt: skip
    desk.started.append(process)
    return process


def deployed(desk: Desk) -> int | None:
    file = desk.folder / "deploy/current/year.yaml"
    if not file.exists():
        return None
    (line,) = [line for line in file.read_text().splitlines() if line.startswith("max-num-seqs:")]
    return int(line.rpartition(" ")[2])


def entries(desk: Desk) -> tuple[Entry, ...]:
    store = open_study(desk.folder / "year.yaml").existing_store()
    try:
        return tuple(StoreLedger(store).entries())
    finally:
        store.close()


def promotions(found: tuple[Entry, ...]) -> list[tuple[object, object]]:
    state = State.of(found)
    settings = {one.number: dict(one.args)["max_num_seqs"] for one in state.versions}
    currents = [one.current for one in found if isinstance(one, SwitchEnded) and one.current]
    return [(settings[a], settings[b]) for a, b in itertools.pairwise(currents) if a != b]


def test_a_year_of_the_real_service_under_random_kills(year: Desk) -> None:
    draws, log = random.Random(20260101), year.folder / "service.log"
    for _ in range(KILLS):
        process = serve(year)
        try:
            code = process.wait(draws.uniform(4, 70))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            year.wait_until_nothing_is_left()
            assert deployed(year) in (None, 2, 4, 8)  # old or new, never half of it
            host.set_clock(year.folder, host.clock_of(year.folder) + 120)
        else:
            assert code == 0, log.read_text()
    assert serve(year).wait(2400) == 0, log.read_text()

    found = entries(year)
    passes = [one for one in found if isinstance(one, PassEnded)]
    story = [(f"{datetime.fromtimestamp(one.fire, UTC):%m}", one.verdict, "; ".join(one.reasons)) for one in passes]
    months = [month for month, _, _ in story]
    # 3:00 in Berlin is the same day in UTC; every month has had its pass, killed or not.
    assert list(dict.fromkeys(months)) == [f"{month:02d}" for month in range(2, 13)], story
    assert promotions(found) == [(8, 4), (4, 8), (8, 4)], story
    reasons = [text for _, verdict, text in story if verdict == "promoted"]
    assert "engine was 0.32.0 and is 0.33.0" in reasons[0]
    assert "prompt lengths have moved" in reasons[1]
    assert "engine was 0.33.0 and is 0.34.0" in reasons[2] and "cannot serve any more" in reasons[2]
    alerts = [month for month, verdict, text in story if verdict == "alert" and "the machine is slower" in text]
    assert set(alerts) == {"09", "10"}, story
    assert {month for month, verdict, _ in story if verdict == "promoted"} == {"04", "07", "12"}
    assert all(text for _, _, text in story)

    assert deployed(year) == 4
    state = State.of(found)
    assert state.switch is None and state.pending is None and state.tuning is None
    left = [path.name for path in year.folder.rglob("*") if "partial" in path.name or path.name.startswith("canary")]
    assert left == []
    year.wait_until_nothing_is_left()
