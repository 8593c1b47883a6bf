"""What can happen to an engine, a tuner and their host, one fault a test. After each nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.engine.cleanup import find_leftovers, remove_leftovers
from autotune.engine.client import EngineClient
from autotune.engine.failures import Cause, FailureClass
from autotune.engine.process import ProcessEngine
from autotune.engine.protocol import Lease, StartFailure
from autotune.engine.readiness import Limits
from autotune.engine.registry import create_engine
from autotune.engine.stages import Stage
from autotune.engine.watchdog import wait_for_hang
from autotune.host.leases import LeaseBook
from autotune.space.config import EngineConfig
from tests.faults.conftest import Tuner, alive, listens, named, simulated, start, start_fails, until

Begin = Callable[..., Tuner]
PHASES = ("init", "load", "compile", "kv_init", "capture", "warmup")


# --- the tuner dies --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
async def test_tuner_is_killed_while_the_engine_serves(tuner: Begin, number: int) -> None:
    dead = tuner()
    assert listens(dead.port)
    dead.process.send_signal(number)
    dead.process.wait()
    assert await until(lambda: not alive(dead.all), 15) < 10
    assert not listens(dead.port)
    assert LeaseBook().holders() == ()


@pytest.mark.parametrize("phase", ["inspect", "init", "weights", "kv_cache"])
async def test_tuner_is_killed_while_the_engine_starts(tuner: Begin, phase: str) -> None:
    dead = tuner("hang_at:warmup", wait_for=phase)
    dead.process.kill()
    dead.process.wait()


async def test_tuner_is_stopped_then_killed(tuner: Begin) -> None:
    dead = tuner()
    dead.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(0.6)
    assert len(alive(dead.engine)) == len(dead.engine), "a stopped tuner may go on later"
    dead.process.kill()
    dead.process.wait()
    await until(lambda: not alive(dead.all), 15)


async def test_tuner_is_killed_and_the_engine_is_deaf(tuner: Begin) -> None:
    dead = tuner("ignore_sigterm")
    dead.process.kill()
    dead.process.wait()
    await until(lambda: not alive(dead.all), 15)


async def test_tuner_and_supervisor_are_killed_and_clean_ends_the_rest(tuner: Begin) -> None:
    dead = tuner()
    os.kill(dead.supervisor, signal.SIGKILL)
    dead.process.kill()
    dead.process.wait()
    found = find_leftovers()
    assert set(alive(dead.engine)) <= {process.pid for process in found.processes}
    assert remove_leftovers(found) == ()
    assert alive(dead.engine) == []
    assert find_leftovers().empty


async def test_clean_leaves_a_running_tuner_alone(tuner: Begin) -> None:
    running = tuner()
    found = find_leftovers()
    assert running.process.pid in [pid for _, pid in found.alive]
    assert found.processes == ()
    assert remove_leftovers(found) == ()
    assert len(alive(running.engine)) == len(running.engine)


async def test_clean_leaves_strangers_alone(tuner: Begin) -> None:
    dead = tuner()
    stranger = _stranger()
    try:
        os.kill(dead.supervisor, signal.SIGKILL)
        dead.process.kill()
        dead.process.wait()
        remove_leftovers(find_leftovers())
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def _stranger() -> subprocess.Popen[bytes]:
    """Somebody whose environment has our variable, with a run that is not known here."""
    env = {**os.environ, "AUTOTUNE_RUN": "0123456789abcdef"}
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=env)


# --- the engine dies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", ["main", "EngineCore", "Worker"])
async def test_a_process_of_the_engine_is_killed(tmp_path: Path, victim: str) -> None:
    running = await start(tmp_path)
    pid = min(running.processes()) if victim == "main" else named(running, victim)
    os.kill(pid, signal.SIGKILL)
    assert await until(lambda: running.failure() is not None) < 1.0
    report = await running.stop()
    assert report.leftovers == ()


class KernelLogOfATest:
    """Nothing at the start; afterwards what the test lets the kernel say."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def mark(self) -> int:
        return 0

    def since(self, mark: int) -> list[str]:
        return self.lines[mark:]


async def test_the_kernel_kills_a_worker_for_want_of_memory(tmp_path: Path) -> None:
    engine, kernel = create_engine(simulated()), KernelLogOfATest()
    assert isinstance(engine, ProcessEngine)
    running = await replace(engine, kernel=kernel).start(EngineConfig(), Lease((), 0), folder=tmp_path)
    assert not isinstance(running, StartFailure)
    victim = named(running, "Worker")
    kernel.lines.append(f"Out of memory: Killed process {victim} (VLLM::Worker) total-vm:100kB, anon-rss:90kB")
    os.kill(victim, signal.SIGKILL)
    await until(lambda: running.failure() is not None)
    failure = running.failure()
    assert failure is not None
    assert (failure.failure_class, failure.cause) == (FailureClass.HOST_OOM, Cause.ENVIRONMENT)
    assert (await running.stop()).leftovers == ()


@pytest.mark.parametrize("victim", ["main", "EngineCore"])
async def test_a_stopped_process_is_ended(tmp_path: Path, victim: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.engine.process.STOP_GRACE", 1.0)
    running = await start(tmp_path)
    os.kill(min(running.processes()) if victim == "main" else named(running, victim), signal.SIGSTOP)
    assert (await running.stop()).leftovers == ()


async def test_stopped_engine_is_a_hang(tmp_path: Path) -> None:
    running = await start(tmp_path, "hang_under_load:2")
    client = EngineClient(running.url, running.api_key)
    hangs = asyncio.Event()

    async def ask() -> None:
        while not hangs.is_set():  # it hangs once two are answered at the same time
            await client.probe(running.served_model, 30)

    requests = [asyncio.ensure_future(ask()) for _ in range(3)]
    failure = await asyncio.wait_for(wait_for_hang(running, 1.0, every=0.2), 15)
    hangs.set()
    assert failure.failure_class is FailureClass.STALL
    assert (await running.stop()).leftovers == ()
    await asyncio.gather(*requests)
    await client.close()


async def test_supervisor_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.engine.process.STOP_GRACE", 0.2)
    monkeypatch.setattr("autotune.engine.supervisor.KILL_DEADLINE", 1.0)
    running = await start(tmp_path)
    main = min(running.processes())
    os.kill(int(Path(f"/proc/{main}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGSTOP)
    assert (await running.stop()).leftovers == ()


async def test_deaf_engine_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.engine.process.STOP_GRACE", 0.5)
    running = await start(tmp_path, "ignore_sigterm", AUTOTUNE_SIM_PROCS="0")
    report = await running.stop()
    assert report.killed
    assert report.leftovers == ()


async def test_child_that_stays_behind(tmp_path: Path) -> None:
    running = await start(tmp_path, "leak_process")
    report = await running.stop()
    assert report.leftovers == ()


async def test_dies_right_after_it_was_ready_with_code_0(tmp_path: Path) -> None:
    running = await start(tmp_path, "exit_after_ready")
    await until(lambda: running.failure() is not None)
    assert (await running.stop()).leftovers == ()


async def test_dies_under_load(tmp_path: Path) -> None:
    running = await start(tmp_path, "die_after:3")
    client = EngineClient(running.url, running.api_key)
    for _ in range(4):
        await client.probe(running.served_model, 5)
    await client.close()
    await until(lambda: running.failure() is not None)
    failure = running.failure()
    assert failure is not None and failure.found
    assert not await running.reconfigure({"max_num_seqs": 1})
    assert (await running.stop()).leftovers == ()


@pytest.mark.parametrize("phase", PHASES)
async def test_dies_while_it_starts(tmp_path: Path, phase: str) -> None:
    failed = await start_fails(tmp_path, simulated(f"exit_at:{phase}"))
    assert failed.failure.found
    assert failed.seconds < 30


@pytest.mark.parametrize("phase", PHASES)
async def test_hangs_while_it_starts(tmp_path: Path, phase: str) -> None:
    engine = create_engine(simulated(f"hang_at:{phase}"))
    assert isinstance(engine, ProcessEngine)
    short = ProcessEngine(engine.recipe, engine.context, Limits(ready=60, quiet=dict.fromkeys(Stage, 2.5)))
    failed = await short.start(EngineConfig(), Lease((), 0), folder=tmp_path)
    assert isinstance(failed, StartFailure)
    assert failed.failure.failure_class is FailureClass.STALL
    assert failed.seconds < 30


async def test_start_is_cancelled(tmp_path: Path) -> None:
    phases: list[str] = []
    engine = create_engine(simulated("hang_at:load"))
    task = asyncio.create_task(engine.start(EngineConfig(), Lease((), 0), folder=tmp_path, on_phase=phases.append))
    await until(lambda: "init" in phases, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_stop_is_cancelled_and_finishes_all_the_same(tmp_path: Path) -> None:
    running = await start(tmp_path, "ignore_sigterm")
    pids = running.processes()
    task = asyncio.create_task(running.stop())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert alive(pids) == []
    assert (await running.stop()).leftovers == ()


# --- ports and servers of others -------------------------------------------------------------------------------------


async def test_stale_server_on_the_port(tmp_path: Path) -> None:
    stale = await start(tmp_path / "stale")
    port = int(stale.url.rpartition(":")[2])
    second = await create_engine(simulated()).start(EngineConfig(), Lease((), port), folder=tmp_path / "new")
    assert isinstance(second, StartFailure)
    assert second.failure.failure_class is FailureClass.PORT_IN_USE
    assert stale.failure() is None
    await stale.stop()


async def test_port_is_taken_between_choice_and_bind(tmp_path: Path) -> None:
    """Somebody who shares the port as the engine may (SO_REUSEADDR) listens first."""
    thief = socket.socket()
    thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def steal(phase: str) -> None:
        if phase == "inspect":
            port = next(int(p) for p in _ports(tmp_path / "engine.log"))
            thief.bind(("127.0.0.1", port))
            thief.listen()

    result = await create_engine(simulated(AUTOTUNE_SIM_STARTUP="1")).start(
        EngineConfig(), Lease((), 0), folder=tmp_path, on_phase=steal
    )
    thief.close()
    assert isinstance(result, StartFailure)
    assert result.failure.failure_class is FailureClass.PORT_IN_USE


def _ports(log: Path) -> list[str]:
    text = log.read_text()
    place = text.find("'port': ")
    return [text[place + 8 :].partition(",")[0].rstrip("}")] if place >= 0 else []


# --- logs, metrics, host ---------------------------------------------------------------------------------------------


async def test_garbage_on_metrics(tmp_path: Path) -> None:
    running = await start(tmp_path, "garbage_metrics")
    assert isinstance(await running.metrics(), dict)
    await running.stop()


async def test_flood_of_lines(tmp_path: Path) -> None:
    running = await start(tmp_path, "log_flood")
    assert running.failure() is None
    await running.stop()


async def test_slow_health(tmp_path: Path) -> None:
    engine = create_engine(simulated("slow_health"))
    assert isinstance(engine, ProcessEngine)
    short = ProcessEngine(engine.recipe, engine.context, Limits(ready=4))
    failed = await short.start(EngineConfig(), Lease((), 0), folder=tmp_path)
    assert isinstance(failed, StartFailure)
    assert failed.failure.failure_class is FailureClass.READY_TIMEOUT


async def test_log_of_a_gigabyte(tmp_path: Path) -> None:
    """The log becomes huge at once (a sparse file); the disk and the reader see little of it."""
    running = await start(tmp_path)
    log = tmp_path / "engine.log"
    with log.open("r+b") as stream:
        stream.truncate(1 << 30)
    await until(lambda: log.stat().st_size < 64 << 20)
    assert running.failure() is None
    assert b"bytes of this log were cut here" in log.read_bytes()
    os.kill(min(running.processes()), signal.SIGKILL)
    assert await until(lambda: running.failure() is not None) < 2.0
    await running.stop()


async def test_log_is_removed_under_the_engine(tmp_path: Path) -> None:
    running = await start(tmp_path)
    (tmp_path / "engine.log").unlink()
    assert running.failure() is None
    assert (await running.stop()).leftovers == ()


async def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(OSError):
        await create_engine(simulated()).start(EngineConfig(), Lease((), 0), folder=blocked / "trial")


async def test_two_engines_at_once_do_not_meet(tmp_path: Path) -> None:
    one, two = await asyncio.gather(start(tmp_path / "1"), start(tmp_path / "2"))
    assert (await one.stop()).leftovers == ()
    assert two.failure() is None
    client = EngineClient(two.url, two.api_key)
    assert (await client.probe(two.served_model, 10)).status == 200
    await client.close()
    assert (await two.stop()).leftovers == ()
