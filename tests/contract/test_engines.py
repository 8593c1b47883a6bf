"""Every kind of engine that can run without a GPU passes the same cases. The real vLLM does in tests/engine."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.engine.keeper import EngineKeeper
from autotune.engine.listeners import PortHold, listening_inodes
from autotune.engine.protocol import Engine, Lease, StartFailure
from autotune.engine.registry import ENGINES, create_engine
from autotune.errors import SpecError
from autotune.space.config import EngineConfig
from autotune.spec.study import StudySpec
from autotune.testing.engine_contract import EngineContract, port_of
from autotune.virtualtime import VirtualLoop, now

SERVER = Path(__file__).parents[1] / "unit" / "engine" / "mini_server.py"
SCRIPT = """#!/bin/sh
# What `docker run -d`, `docker logs -f` and `docker stop` are: the server is no child of the command that starts it.
here=$1 word=$2
shift 2
case $word in
  start) setsid "$@" >>$here/log 2>&1 & echo $! >$here/pid ;;
  logs) exec tail -n +1 -F $here/log 2>/dev/null ;;
  stop) kill $(cat $here/pid) && echo stopped >$here/stopped ;;
esac
"""


def study(**engine: object) -> StudySpec:
    return StudySpec.model_validate({"name": "contract", "model": "Qwen/Qwen3-8B", "engine": engine})


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_STATE", str(tmp_path / "state"))


class TestSimulated(EngineContract):
    def engine(self) -> Engine:
        env = {"AUTOTUNE_SIM_PROCS": "1", "AUTOTUNE_SIM_STARTUP": "0"}
        return create_engine(study(kind="simulated", simulate={"speed": 50}, env=env))

    def config(self) -> EngineConfig:
        return EngineConfig.of({"max_num_seqs": 32, "max_num_batched_tokens": 2048})

    async def test_limits_change_on_the_running_engine(self, tmp_path: Path) -> None:
        engine = self.engine()
        running = await engine.start(self.config(), Lease((), 0), folder=tmp_path)
        assert not isinstance(running, StartFailure)
        try:
            assert "max_num_seqs" in engine.live_settings
            assert await running.reconfigure({"max_num_seqs": 2})
            assert not await running.reconfigure({"max_num_seqs": 64}), "more than it was started with"
        finally:
            await running.stop()

    async def test_a_start_that_leaves_limits_open_serves_what_is_below_the_engines_own(self, tmp_path: Path) -> None:
        """A baseline as one has it, without any limits: its live siblings need no restart, more than it has does."""
        keeper = EngineKeeper(self.engine(), Lease((), 0))
        try:
            first = await keeper.obtain(EngineConfig(), folder=tmp_path / "0")
            assert not isinstance(first, StartFailure) and first.restarted
            own = dict(first.engine.resolved.values)["max_num_seqs"]
            assert isinstance(own, int)
            for settings in ({"max_num_seqs": 8}, {"max_num_seqs": own, "long_prefill_token_threshold": 512}, {}):
                found = await keeper.obtain(EngineConfig.of(settings), folder=tmp_path / "1")
                assert not isinstance(found, StartFailure) and not found.restarted, settings
            assert not keeper.can_serve(EngineConfig.of({"max_num_seqs": own + 1}))
            again = await keeper.obtain(EngineConfig.of({"max_num_seqs": 8}), folder=tmp_path / "2", fresh=True)
            assert not isinstance(again, StartFailure) and again.restarted
            assert not keeper.can_serve(EngineConfig()), "8 is not what the engine would choose"
            assert not keeper.can_serve(EngineConfig.of({"max_num_seqs": 9}))
        finally:
            await keeper.release()

    async def test_an_engine_is_started_with_room_and_lowered_to_what_is_asked(self, tmp_path: Path) -> None:
        """What is larger later needs no start; a proof is started exactly; room that cannot work costs nothing else."""
        keeper = EngineKeeper(self.engine(), Lease((), 0))
        small, middle, wide, impossible = (
            EngineConfig.of({"max_num_batched_tokens": tokens, "max_num_seqs": 64}) for tokens in (64, 256, 4096, -1)
        )
        try:
            first = await keeper.obtain(small, folder=tmp_path / "0", room=wide)
            assert not isinstance(first, StartFailure) and first.restarted
            assert dict(first.engine.resolved.values)["max_num_batched_tokens"] == 4096
            later = await keeper.obtain(middle, folder=tmp_path / "1", room=wide)
            assert not isinstance(later, StartFailure) and not later.restarted
            proof = await keeper.obtain(small, folder=tmp_path / "2", fresh=True, room=wide)
            assert not isinstance(proof, StartFailure) and not keeper.can_serve(middle)
            other = await keeper.obtain(middle, folder=tmp_path / "3", room=impossible)
            assert not isinstance(other, StartFailure) and other.restarted
            assert dict(other.engine.resolved.values)["max_num_batched_tokens"] == 256
        finally:
            await keeper.release()


class Virtual(TestSimulated):
    """The same server as a task on a loop in virtual time; no process is there to be looked at."""

    owned = False

    def engine(self) -> Engine:
        return create_engine(study(kind="simulated", simulate={"clock": "virtual"}))

    async def test_a_start_takes_as_long_as_on_the_card_and_is_not_waited_for(self, tmp_path: Path) -> None:
        began, real = now(), time.monotonic()
        running = await self.engine().start(self.config(), Lease((), 0), folder=tmp_path)
        assert not isinstance(running, StartFailure)
        await running.stop()
        assert 100 < now() - began < 200
        assert 100 < sum(phase.seconds for phase in running.phases) < 200
        assert time.monotonic() - real < 20
        assert "Application shutdown complete" in (tmp_path / "engine.log").read_text()

    async def test_a_server_that_is_deaf_is_killed_and_gone(self, tmp_path: Path) -> None:
        deaf = create_engine(study(kind="simulated", simulate={"clock": "virtual", "fault": "ignore_sigterm"}))
        running = await deaf.start(self.config(), Lease((), 0), folder=tmp_path)
        assert not isinstance(running, StartFailure)
        report = await running.stop()
        assert report.killed and report.leftovers == ()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.get_running_loop().create_connection(asyncio.Protocol, "127.0.0.1", port_of(running))

    async def test_a_start_that_stands_still_is_ended(self, tmp_path: Path) -> None:
        engine = create_engine(study(kind="simulated", simulate={"clock": "virtual", "fault": "hang_at:compile"}))
        failed = await engine.start(self.config(), Lease((), 0), folder=tmp_path)
        assert isinstance(failed, StartFailure)
        assert failed.failure.failure_class == "stall"
        assert failed.seconds > 300


@pytest.mark.parametrize(
    "case", [name for name, _ in inspect.getmembers(Virtual, inspect.iscoroutinefunction) if name.startswith("test_")]
)
def test_in_virtual_time(case: str, tmp_path: Path) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(getattr(Virtual(), case)(tmp_path))


class TestCommand(EngineContract):
    keyed = True

    @pytest.fixture(autouse=True)
    def script(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.path = tmp_path / "start.sh"
        self.path.write_text(SCRIPT)
        (tmp_path / "log").touch()
        self.path.chmod(0o755)

    def engine(self) -> Engine:
        call = [str(self.path), str(self.folder)]
        server = [sys.executable, str(SERVER), "serve", "{model}", "--host", "127.0.0.1", "--port", "{port}"]
        start = [*call, "start", "env", "VLLM_API_KEY={api_key}", *server, "--served-model-name", "{name}", "{args}"]
        command = {"start": start, "logs": [*call, "logs"], "stop": [*call, "stop"]}
        return create_engine(study(kind="command", command=command))

    async def test_the_templates_do_the_work(self, tmp_path: Path) -> None:
        running = await self.engine().start(EngineConfig(), Lease((), 0), folder=tmp_path / "trial")
        assert not isinstance(running, StartFailure), running
        await running.stop()
        assert (tmp_path / "stopped").read_text() == "stopped\n"
        assert "Application startup complete" in (tmp_path / "trial" / "engine.log").read_text()

    async def test_a_command_that_fails(self, tmp_path: Path) -> None:
        spec = study(kind="command", command={"start": ["/does/not/exist", "{name}", "{args}"]})
        failed = await create_engine(spec).start(EngineConfig(), Lease((), 0), folder=tmp_path)
        assert isinstance(failed, StartFailure)
        assert failed.seconds < 20

    def test_a_template_must_say_the_name(self) -> None:
        with pytest.raises(SpecError, match="which name the engine serves"):
            create_engine(study(kind="command", command={"start": ["docker", "run", "{args}"]}))


class TestEndpoint(EngineContract):
    owned = False
    keyed = True

    @pytest.fixture(autouse=True)
    def server(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        hold = PortHold()
        self.port = hold.port
        monkeypatch.setenv("MY_ENDPOINT_KEY", "secret-key")
        words = ["serve", "m", "--host", "127.0.0.1", "--port", str(hold.port), "--served-model-name", "theirs"]
        env = {"PATH": os.environ["PATH"], "VLLM_API_KEY": "secret-key"}
        with subprocess.Popen([sys.executable, str(SERVER), *words], env=env, stdout=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + 20
            while not listening_inodes(hold.port) and time.monotonic() < deadline:
                time.sleep(0.02)
            hold.release()
            yield
            assert process.poll() is None, "an endpoint must not be stopped"
            process.kill()

    def engine(self) -> Engine:
        return create_engine(
            study(kind="endpoint", url=f"http://127.0.0.1:{self.port}/", api_key_env="MY_ENDPOINT_KEY")
        )

    async def test_it_claims_nothing(self, tmp_path: Path) -> None:
        running = await self.engine().start(EngineConfig(), Lease((), 0), folder=tmp_path)
        assert not isinstance(running, StartFailure)
        assert running.processes() == ()
        assert running.log is None
        assert running.served_model == "theirs"
        assert not await running.reconfigure({"max_num_seqs": 1})
        assert not await running.reset_caches()
        await running.stop()

    async def test_wrong_key_and_wrong_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MY_ENDPOINT_KEY", "another")
        refused = await self.engine().start(EngineConfig(), Lease((), 0), folder=tmp_path)
        assert isinstance(refused, StartFailure)
        assert "refuses the key" in refused.failure.reason
        monkeypatch.setenv("MY_ENDPOINT_KEY", "secret-key")
        spec = study(
            kind="endpoint", url=f"http://127.0.0.1:{self.port}", api_key_env="MY_ENDPOINT_KEY", served_model="x"
        )
        unknown = await create_engine(spec).start(EngineConfig(), Lease((), 0), folder=tmp_path)
        assert isinstance(unknown, StartFailure)
        assert "it serves theirs, not x" in unknown.failure.reason

    def test_key_that_is_not_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("MY_ENDPOINT_KEY")
        with pytest.raises(SpecError, match="MY_ENDPOINT_KEY is not set"):
            self.engine()


def test_every_kind_of_the_study_file_is_in_the_registry() -> None:
    kinds = StudySpec.model_json_schema()["$defs"]["EngineSpec"]["properties"]["kind"]["enum"]
    assert set(ENGINES) == set(kinds)
