"""An engine as a process: started, proven to be ours, watched, stopped, and nothing left of it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from autotune.engine.failures import FailureClass
from autotune.engine.listeners import PortHold, listening_inodes
from autotune.engine.live import LiveStart
from autotune.engine.process import ProcessEngine
from autotune.engine.protocol import EngineContext, Lease, RunningEngine, StartFailure
from autotune.engine.readiness import Limits
from autotune.engine.recipe import Command, Identity
from autotune.engine.runs import RUN_VARIABLE, current_run, read_starts
from autotune.engine.stages import Stage
from autotune.engine.supervised import marked
from autotune.engine.supervisor import TICK
from autotune.space.config import EngineConfig

SERVER = Path(__file__).with_name("mini_server.py")


class MiniRecipe:
    """Runs the test server."""

    time_scale = 1.0
    live_route = ""

    def __init__(self, *faults: str) -> None:
        self.faults = faults
        self.seen: Command | None = None

    def command(self, config: EngineConfig, identity: Identity, live: LiveStart) -> Command:
        words = [sys.executable, str(SERVER), "serve", "m", "--host", "127.0.0.1", "--port", str(identity.port)]
        env = {"PATH": os.environ["PATH"], "VLLM_API_KEY": identity.api_key, "MINI": ",".join(self.faults)}
        self.seen = Command((*words, "--served-model-name", identity.served_model), env)
        return self.seen


def engine(*faults: str, limits: Limits | None = None) -> ProcessEngine:
    return ProcessEngine(MiniRecipe(*faults), EngineContext("m"), limits or Limits(ready=30))


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AUTOTUNE_STATE", str(tmp_path / "state"))
    yield
    run = current_run().run
    assert set(marked(RUN_VARIABLE, run)) - {os.getpid()} == set()
    assert read_starts(run) == ()
    assert {name for name in _shm() if name.startswith("psm_autotune_")} == set()


def _shm() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


async def started(folder: Path, *faults: str) -> RunningEngine:
    running = await engine(*faults).start(EngineConfig(), Lease((), 0), folder=folder)
    assert not isinstance(running, StartFailure), running
    return running


async def failed(folder: Path, *faults: str, limits: Limits | None = None) -> StartFailure:
    result = await engine(*faults, limits=limits).start(EngineConfig(), Lease((), 0), folder=folder)
    assert isinstance(result, StartFailure)
    return result


async def until(condition, seconds: float = 5.0) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "it did not happen in time"
        await asyncio.sleep(0.02)
    return time.monotonic() - began


async def test_starts_answers_and_leaves_nothing(tmp_path: Path) -> None:
    phases: list[str] = []
    running = await engine().start(EngineConfig(), Lease((), 0), folder=tmp_path, on_phase=phases.append)
    assert not isinstance(running, StartFailure), running
    port = int(running.url.rpartition(":")[2])
    try:
        assert running.failure() is None
        assert len(running.processes()) == 1
        assert (await running.metrics())["vllm:num_requests_running"] == 3.0
        assert await running.reset_caches()
        assert not await running.reconfigure({"max_num_seqs": 4})
        assert "serving" in phases
    finally:
        report = await running.stop()
    assert report.leftovers == ()
    assert not report.killed
    assert await running.stop() == report
    assert not listening_inodes(port)


async def test_key_is_neither_on_the_command_line_nor_in_the_log(tmp_path: Path) -> None:
    recipe = MiniRecipe()
    running = await ProcessEngine(recipe, EngineContext("m"), Limits(ready=30)).start(
        EngineConfig(), Lease((), 0), folder=tmp_path
    )
    assert not isinstance(running, StartFailure)
    try:
        lines = [Path(f"/proc/{pid}/cmdline").read_text() for pid in running.processes()]
        assert running.api_key and not any(running.api_key in line for line in lines)
        assert running.api_key not in (tmp_path / "engine.log").read_text()
        assert running.api_key not in repr(recipe.seen)
    finally:
        await running.stop()


async def test_two_starts_are_told_apart_by_name_and_place_and_share_the_key_of_the_run(tmp_path: Path) -> None:
    one = await started(tmp_path / "1")
    two = await started(tmp_path / "2")
    try:
        assert one.served_model != two.served_model
        assert one.api_key == two.api_key  # a key for each would be a new compilation for each in vLLM up to 0.31
        assert len(one.api_key) >= 32
        assert one.url != two.url
    finally:
        await asyncio.gather(one.stop(), two.stop())


async def test_deaf_to_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.engine.process.STOP_GRACE", 0.5)
    running = await started(tmp_path, "deaf")
    report = await running.stop()
    assert report.killed
    assert report.leftovers == ()


async def test_child_in_a_session_of_its_own_goes_too(tmp_path: Path) -> None:
    running = await started(tmp_path, "child")
    pids = running.processes()
    assert len(pids) == 2
    report = await running.stop()
    assert report.leftovers == ()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


async def test_orphan_of_a_killed_server_goes_too(tmp_path: Path) -> None:
    running = await started(tmp_path, "child")
    main = min(running.processes())
    os.kill(main, signal.SIGKILL)
    seconds = await until(lambda: running.failure() is not None)
    assert seconds < 1.0
    assert len(running.processes()) == 1
    report = await running.stop()
    assert report.leftovers == ()


async def test_killed_supervisor_loses_nothing(tmp_path: Path) -> None:
    running = await started(tmp_path, "child")
    parent = int(Path(f"/proc/{min(running.processes())}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    await until(lambda: running.failure() is not None)
    report = await running.stop()
    assert report.leftovers == ()


async def test_stopped_engine_and_stopped_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.engine.process.STOP_GRACE", 0.5)
    running = await started(tmp_path)
    os.kill(min(running.processes()), signal.SIGSTOP)
    report = await running.stop()
    assert report.leftovers == ()


async def test_shared_memory_is_removed(tmp_path: Path) -> None:
    running = await started(tmp_path, "shm")
    name = f"psm_autotune_{min(running.processes())}"
    assert name in _shm()
    await asyncio.sleep(4 * TICK)  # the supervisor looks for new shared memory once a tick
    os.kill(min(running.processes()), signal.SIGTERM)
    await running.stop()
    assert name not in _shm()


async def test_failed_start_says_why(tmp_path: Path) -> None:
    result = await failed(tmp_path, "exit3")
    assert result.seconds < 10
    assert "something is wrong" in result.failure.reason or "exit code 3" in result.failure.reason


async def test_command_that_does_not_exist(tmp_path: Path) -> None:
    class Missing(MiniRecipe):
        def command(self, config: EngineConfig, identity: Identity, live: LiveStart) -> Command:
            return Command(("/does/not/exist",), {})

    result = await ProcessEngine(Missing(), EngineContext("m"), Limits()).start(
        EngineConfig(), Lease((), 0), folder=tmp_path
    )
    assert isinstance(result, StartFailure)
    assert result.failure.failure_class is FailureClass.INSTALL_BROKEN


async def test_silent_start_ends_at_the_quiet_limit(tmp_path: Path) -> None:
    limits = Limits(ready=30, quiet=dict.fromkeys(Stage, 0.5))
    result = await failed(tmp_path, "hang", limits=limits)
    assert result.failure.signature_id == "own_phase_timeout"
    assert result.seconds < 10


async def test_start_ends_at_the_ready_limit(tmp_path: Path) -> None:
    result = await failed(tmp_path, "hang", limits=Limits(ready=0.5))
    assert result.failure.failure_class is FailureClass.READY_TIMEOUT


async def test_healthy_is_not_serving(tmp_path: Path) -> None:
    result = await failed(tmp_path, "mute")
    assert result.failure.signature_id == "own_not_serving"


async def test_server_without_a_key_is_not_believed(tmp_path: Path) -> None:
    result = await failed(tmp_path, "nokey")
    assert result.failure.signature_id == "own_foreign_server"


async def test_port_that_somebody_listens_on(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = await engine().start(EngineConfig(), Lease((), port), folder=tmp_path)
    assert isinstance(result, StartFailure)
    assert result.failure.failure_class is FailureClass.PORT_IN_USE


async def test_death_while_serving_is_noticed_within_a_second(tmp_path: Path) -> None:
    running = await started(tmp_path, "die")
    from autotune.engine.client import EngineClient

    client = EngineClient(running.url, running.api_key)
    await client.probe(running.served_model, 5)
    await client.close()
    assert await until(lambda: running.failure() is not None) < 1.0
    await running.stop()


async def test_flooded_log_keeps_head_and_tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.engine.supervised.LOG_CAP", 4 << 20)
    monkeypatch.setattr("autotune.engine.supervised.LOG_KEEP", 1 << 20)
    running = await started(tmp_path, "flood")
    await until(lambda: (tmp_path / "engine.log").stat().st_size < 6 << 20)
    await running.stop()
    assert "Application startup complete" in (tmp_path / "engine.log").read_text()


async def test_cancelled_start_leaves_nothing(tmp_path: Path) -> None:
    task = asyncio.create_task(engine("hang").start(EngineConfig(), Lease((), 0), folder=tmp_path))
    await until(lambda: bool(read_starts(current_run().run)))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_held_port_is_bound_only_by_whom_it_is_for() -> None:
    hold = PortHold()
    with socket.socket() as stranger, pytest.raises(OSError):
        stranger.bind(("127.0.0.1", hold.port))
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", hold.port))
        server.listen()
        assert listening_inodes(hold.port)
        with pytest.raises(OSError):
            PortHold(hold.port)
    hold.release()
