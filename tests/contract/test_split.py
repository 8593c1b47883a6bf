"""Several engines behind a router are one engine: they pass the cases of every engine, and stand or fall together."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import aiohttp

from autotune.engine.protocol import Engine, Lease, RunningEngine, StartFailure
from autotune.engine.registry import create_engine
from autotune.engine.running_split import RunningSplit
from autotune.host.leases import LeaseBook
from autotune.host.processes import command_line, start_ticks
from autotune.space.config import EngineConfig
from autotune.spec.study import StudySpec
from autotune.testing.engine_contract import EngineContract, start

SIMULATED = {"kind": "simulated", "simulate": {"speed": 50, "startup": 0}}


class TestSplit(EngineContract):
    def engine(self) -> Engine:
        topology = {"kind": "disaggregated", "transfer": "nixl"}
        spec = {"name": "split", "model": "llama-3.1-8b", "engine": SIMULATED, "hardware": {"gpus": 2}}
        return create_engine(StudySpec.model_validate({**spec, "topology": topology}))

    def config(self) -> EngineConfig:
        return EngineConfig.of({"topology.prefill": 1, "router.threshold": 64, "decode.max_num_seqs": 32})

    async def test_prompts_are_read_by_one_engine_and_answered_by_another(self, tmp_path: Path) -> None:
        running = await start(self.engine(), self.config(), tmp_path, [])
        try:
            before = await running.metrics()
            for length in (8, 64, 200):
                await answered(running, length, 16)
            after = await running.metrics()
            grown = {name: after[name] - before.get(name, 0.0) for name in after if "_tokens_total{" in name}
            written = 'vllm:generation_tokens_total{engine="%s"}'
            assert grown[written % "prefill-0"] == 2, "one token for each of the two long prompts"
            assert grown[written % "decode-0"] == 48
            total = after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"]
            assert total == 48, "what the clients got"
            assert dict(running.resolved.values)["max_num_seqs"] == 32
        finally:
            await running.stop()

    async def test_the_death_of_one_is_the_death_of_all(self, tmp_path: Path) -> None:
        running = await start(self.engine(), self.config(), tmp_path, [])
        assert isinstance(running, RunningSplit)
        try:
            os.kill(running.members[1].engine.processes()[0], signal.SIGKILL)
            failure = await died(running)
            assert "decode-0: " in failure
            assert (tmp_path / "engine.log").resolve() == tmp_path / "decode-0" / "engine.log"
        finally:
            report = await running.stop()
        assert report.leftovers == ()
        assert [pid for pid in running.processes() if start_ticks(pid) is not None] == []
        assert LeaseBook().holders() == ()

    async def test_the_death_of_the_router_is_one_too(self, tmp_path: Path) -> None:
        running = await start(self.engine(), self.config(), tmp_path, [])
        try:
            routers = [pid for pid in running.processes() if "autotune.engine.router" in command_line(pid)]
            assert len(routers) == 1
            os.kill(routers[0], signal.SIGKILL)
            assert "the router ended" in await died(running)
        finally:
            assert (await running.stop()).leftovers == ()

    async def test_an_engine_that_cannot_start_ends_the_others_and_is_named(self, tmp_path: Path) -> None:
        config = self.config().merged({"decode.max_num_seqs": 4096, "decode.max_num_batched_tokens": 64})
        result = await self.engine().start(config, Lease((), 0), folder=tmp_path)
        assert isinstance(result, StartFailure)
        assert result.failure.reason.startswith("decode-"), result.failure
        assert {advice.parameter for advice in result.failure.advice} <= {
            "decode.max_num_batched_tokens", "decode.max_num_seqs",
        }  # fmt: skip
        assert result.log is not None and result.log.parent.name == "decode-0"
        assert (tmp_path / "engine.log").resolve() == result.log.resolve()
        assert LeaseBook().holders() == ()

    async def test_engines_that_do_not_fit_are_infeasible(self, tmp_path: Path) -> None:
        result = await self.engine().start(EngineConfig.of({"topology.prefill": 3}), Lease((), 0), folder=tmp_path)
        assert isinstance(result, StartFailure)
        assert "do not fit the 2 GPUs" in result.failure.reason

    async def test_a_start_that_is_cancelled_leaves_nothing(self, tmp_path: Path) -> None:
        config, begun = self.config().merged({}, {"AUTOTUNE_SIM_FAULT": "hang_at:load"}), asyncio.Event()
        start = self.engine().start(config, Lease((), 0), folder=tmp_path, on_phase=lambda name: begun.set())
        task = asyncio.ensure_future(start)
        await begun.wait()
        task.cancel()
        assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)
        assert LeaseBook().holders() == ()


async def answered(running: RunningEngine, length: int, tokens: int) -> None:
    """One request through the router."""
    body = {"model": running.served_model, "prompt": list(range(1, length + 1)), "max_tokens": tokens,
            "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}  # fmt: skip
    headers = {"Authorization": f"Bearer {running.api_key}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{running.url}/v1/completions", json=body, headers=headers) as response,
    ):
        text = await response.text()
        assert response.status == 200, text
        assert f'"completion_tokens": {tokens}' in text and text.endswith("data: [DONE]\n\n")


async def died(running: RunningEngine) -> str:
    """The reason, once it is known."""
    deadline = time.monotonic() + 10
    while (failure := running.failure()) is None:
        assert time.monotonic() < deadline, "nobody noticed"
        await asyncio.sleep(0.05)
    return failure.reason
