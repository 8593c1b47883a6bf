"""What every engine must do. A new kind of engine passes these cases or is none.

Subclass `EngineContract` in a test module, give it a name that begins with ``Test``, and say how to make the engine::

    class TestMine(EngineContract):
        def engine(self) -> Engine:
            return MyEngine(...)

The cases are plain coroutines for pytest-asyncio; `tmp_path` is pytest's.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from pathlib import Path

from autotune.engine.client import EngineClient, model_ids, tokens_in
from autotune.engine.listeners import listening_inodes
from autotune.engine.protocol import Engine, Lease, RunningEngine, StartFailure
from autotune.host.processes import start_ticks
from autotune.space.config import EngineConfig

PROBE_SECONDS = 120.0


class EngineContract(ABC):
    """The cases. Each one starts the engine once or twice."""

    owned = True
    """The engine is a process of ours; an endpoint is not."""
    keyed = True
    """It wants a key that is fresh in every start."""

    @abstractmethod
    def engine(self) -> Engine:
        """A fresh engine."""

    def config(self) -> EngineConfig:
        """A configuration that serves."""
        return EngineConfig()

    async def test_it_starts_serves_and_leaves_nothing(self, tmp_path: Path) -> None:
        phases: list[str] = []
        running = await start(self.engine(), self.config(), tmp_path, phases)
        try:
            await check_serving(running, keyed=self.keyed)
            assert phases, "no phase was announced"
            assert running.phases and all(phase.seconds >= 0 for phase in running.phases)
            if self.owned:
                check_log(running)
            processes = running.processes()
            assert bool(processes) == self.owned
        finally:
            report = await running.stop()
        assert report.leftovers == ()
        assert await running.stop() == report, "a second stop must say the same"
        if self.owned:
            assert [pid for pid in processes if start_ticks(pid) is not None] == []
            assert not listening_inodes(port_of(running))

    async def test_it_says_what_it_cannot_do(self, tmp_path: Path) -> None:
        running = await start(self.engine(), self.config(), tmp_path, [])
        try:
            assert await running.reconfigure({"no_such_setting": 1}) is False
            assert isinstance(await running.reset_caches(), bool)
            metrics = await running.metrics()
            assert all(isinstance(value, float) for value in metrics.values())
            assert running.resolved.mismatches == ()
        finally:
            await running.stop()

    async def test_stopped_while_it_answers(self, tmp_path: Path) -> None:
        running = await start(self.engine(), self.config(), tmp_path, [])
        client = EngineClient(running.url, running.api_key)
        request = asyncio.ensure_future(client.probe(running.served_model, PROBE_SECONDS))
        await asyncio.sleep(0)
        report = await running.stop()
        await request
        await client.close()
        assert report.leftovers == ()


async def start(engine: Engine, config: EngineConfig, folder: Path, phases: list[str]) -> RunningEngine:
    """Start an engine that is expected to come up."""
    result = await engine.start(config, Lease((), 0), folder=folder, on_phase=phases.append)
    assert not isinstance(result, StartFailure), f"{result.failure.reason} ({result.failure.failure_class})"
    return result


async def check_serving(running: RunningEngine, *, keyed: bool) -> None:
    """It answers with tokens, under its own name, to its own key, and says that it lives."""
    assert running.failure() is None
    assert not running.url.endswith("/")
    assert running.time_scale > 0
    client = EngineClient(running.url, running.api_key)
    try:
        reply = await client.probe(running.served_model, PROBE_SECONDS)
        assert reply.status == 200, reply.text
        assert tokens_in(reply) > 0
        assert running.served_model in model_ids(await client.models())
        if keyed:
            assert running.api_key
            assert (await client.models(with_key=False)).status == 401
    finally:
        await client.close()


def check_log(running: RunningEngine) -> None:
    """The output is in a file, without the key, and the key is on no command line."""
    assert running.log is not None
    text = running.log.read_text(errors="replace")
    assert text
    if running.api_key:
        assert running.api_key not in text
        for pid in running.processes():
            assert running.api_key.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()


def port_of(running: RunningEngine) -> int:
    """The port in its URL."""
    return int(running.url.rpartition(":")[2])
