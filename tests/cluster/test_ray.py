"""A study on a Ray cluster: files come home, a killed node costs one trial, an interruption leaves nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.assembly import assemble
from autotune.cluster.ray_cluster import NoRoom, RayCluster, Request
from autotune.engine.runs import START_VARIABLE
from autotune.events import Event, StageStarted, TrialStarted
from autotune.host.processes import environment_value, own_pids, start_ticks
from autotune.outcome import Broken, Measured, TrialRecord
from autotune.places import executor_of
from autotune.result import StudyResult
from autotune.run import StudyRun
from autotune.study import Study, open_study
from tests.cluster.conftest import Nodes
from tests.desk import STUDY, Desk, wait_for_event


class Watching:
    """Does something the first time that an event is wanted."""

    def __init__(self, wanted: Callable[[Event], bool] | None = None, then: Callable[[], None] | None = None) -> None:
        self.wanted, self.then = wanted, then
        self.events: list[Event] = []

    def notify(self, event: Event) -> None:
        self.events.append(event)
        if self.wanted is not None and self.then is not None and self.wanted(event):
            then, self.then = self.then, None
            then()


def study_in(folder: Path, nodes: Nodes, *settings: str, places: int = 2) -> Study:
    """In real time: at five times that, a busy host starves the load client beside so many raylets."""
    path = folder / "tiny.yaml"
    path.write_text(STUDY)
    return open_study(
        path,
        [
            f"hardware.gpus={places}", f"hardware.parallel_trials={places}", "hardware.neighbour_check=false",
            f"hardware.cluster.address={nodes.address}", "hardware.cluster.place_timeout=60s", "confirm.rounds=0",
            "search.trials=4", "search.experts=false", "engine.simulate.speed=1", *settings,
        ],
    )  # fmt: skip


async def run_in(study: Study, watching: Watching) -> StudyResult:
    parts = await assemble(study)
    try:
        with executor_of(parts, watching) as executor:
            try:
                return await StudyRun(parts, parts.store, watching, executor).run()
            finally:
                await executor.close()
    finally:
        parts.close()


def measured(result: StudyResult) -> list[TrialRecord]:
    return [record for record in result.records if isinstance(record.outcome, Measured)]


def lost(result: StudyResult) -> list[tuple[str, TrialRecord]]:
    """Faults with their causes, but for measurements that a busy host spoilt: those are repeated, cluster or not."""
    broken = [(record.outcome, record) for record in result.records if isinstance(record.outcome, Broken)]
    return [(outcome.cause, record) for outcome, record in broken if outcome.cause != "invalid_measurement"]


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_node_is_killed_in_mid_trial(tmp_path: Path, nodes: Nodes) -> None:
    first, _ = nodes.add(), nodes.add()
    loop = asyncio.get_running_loop()

    def kill() -> None:
        loop.run_in_executor(None, nodes.kill, first)
        loop.call_later(0.5, nodes.add)  # Ray wants the main thread for that

    watching = Watching(lambda event: isinstance(event, StageStarted) and event.number == 1, kill)
    result = await run_in(study_in(tmp_path, nodes, "load.window.requests=150"), watching)
    ((cause, victim),) = lost(result)
    assert cause == "node_lost", "one trial is lost, and nothing else"
    assert len(measured(result)) == 4
    again = [r for r in measured(result) if r.config.hash == victim.config.hash]
    assert len(again) == 1 and again[0].attempt >= 2
    assert {r.place for r in measured(result)} == {0, 1}
    assert any(r.restarted for r in measured(result))
    for record in measured(result):
        assert record.node and record.folder == tmp_path / "tiny" / f"trial-{record.number:04d}"
        assert not record.restarted or "vLLM" in (record.folder / "engine.log").read_text()
        assert isinstance(record.outcome, Measured)
        samples = record.outcome.load.levels[0].samples
        assert samples is not None and samples.is_file() and samples.is_relative_to(tmp_path)


SPANNING = """\
#!/bin/sh
echo "$AUTOTUNE_NODES $AUTOTUNE_NODE_GPUS" >>"$0.hosts"
export AUTOTUNE_SIM_CARD=h100 AUTOTUNE_SIM_STARTUP=0.02
exec "$@"
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_trial_on_two_hosts_is_lost_with_either(tmp_path: Path, nodes: Nodes) -> None:
    first, second = nodes.add(node_ip_address="127.0.0.2"), nodes.add(node_ip_address="127.0.0.3")
    command = tmp_path / "engine.sh"
    command.write_text(SPANNING)
    command.chmod(0o755)
    words = [str(command), sys.executable, "-m", "autotune.simulator", "serve", "{model}", "--port", "{port}"]
    template = {"start": [*words, "--served-model-name", "{name}", "{args}"]}
    others: list[Any] = []

    def kill() -> None:
        """The host of the trial that has no engine on it."""
        with_engine = command.with_name("engine.sh.hosts").read_text().split(",")[0]
        others.append(second if with_engine == first.node_ip_address else first)
        asyncio.get_running_loop().run_in_executor(None, nodes.kill, others[0])
        asyncio.get_running_loop().call_later(0.5, lambda: nodes.add(node_ip_address="127.0.0.4"))

    watching = Watching(lambda event: isinstance(event, StageStarted) and event.stage == "measure", kill)
    study = study_in(
        tmp_path, nodes, "hardware.gpus=0", "hardware.parallel_trials=1", "hardware.cluster.hosts=2",
        "engine={kind: command}", f"engine.command={json.dumps(template)}", "search.trials=1",
        "load.window.requests=400",
    )  # fmt: skip
    result = await run_in(study, watching)
    assert [cause for cause, _ in lost(result)] == ["node_lost"]
    assert len(measured(result)) == 1
    told = [line.split()[0].split(",") for line in command.with_name("engine.sh.hosts").read_text().splitlines()]
    assert {frozenset(line) for line in told[:1]} == {frozenset({"127.0.0.2", "127.0.0.3"})}
    assert others[0].node_ip_address not in told[-1] and "127.0.0.4" in told[-1]
    await gpus_of_each_host(nodes)


async def gpus_of_each_host(nodes: Nodes) -> None:
    """A place on two hosts knows the GPUs that are its own on each."""
    cluster = RayCluster(nodes.address)
    try:
        place, hosts = await cluster.place(Request(cpus=1, gpus=2, hosts=2), 60, leases_gpus=True)
        assert [host.gpus for host in hosts] == [(0,), (0,)]
        assert len({host.address for host in hosts}) == 2
        with pytest.raises(NoRoom):
            await cluster.place(Request(cpus=1, gpus=2, hosts=2), 1, leases_gpus=True)
        await place.close(10)
    finally:
        cluster.close()


@pytest.mark.timeout(200)
async def test_an_interruption_ends_the_engine_on_its_node(tmp_path: Path, nodes: Nodes) -> None:
    nodes.add()
    task: asyncio.Task[StudyResult]
    watching = Watching(lambda event: isinstance(event, StageStarted), lambda: task.cancel() and None)
    study = study_in(tmp_path, nodes, "load.window.requests=4000", places=1)
    task = asyncio.create_task(run_in(study, watching))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert any(isinstance(event, TrialStarted) for event in watching.events)
    result = await run_in(study_in(tmp_path, nodes, "search.trials=1", places=1), Watching())
    assert [cause for cause, _ in lost(result)] == ["interrupted"]
    assert len(measured(result)) == 1, "it goes on on the same cluster"


@pytest.mark.timeout(300)
def test_a_driver_that_is_killed_leaves_no_engine(desk: Desk, nodes: Nodes) -> None:
    nodes.add()
    desk.write()
    settings = ["hardware.gpus=1", f"hardware.cluster.address={nodes.address}", "load.window.requests=4000"]
    words = [word for setting in settings for word in ("--set", setting)]
    process = desk.start("run", "tiny.yaml", "--json", *words)
    wait_for_event(process, lambda event: event["event"] == "stage" and event["stage"] == "measure")
    assert engines(), "an engine runs on the node"
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 60
    while (left := engines()) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == []


def engines() -> list[int]:
    """Engines of this test, wherever they were started."""
    mark = os.environ["AUTOTUNE_TEST"]
    ours = [pid for pid in own_pids() if environment_value(pid, "AUTOTUNE_TEST") == mark]
    return [pid for pid in ours if environment_value(pid, START_VARIABLE) and start_ticks(pid) is not None]
