"""Limits changed on the running vLLM: in force from the next request on, held, capped by the start, and taken back.

One start.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from autotune.engine.cpu_setup import CpuEngine
from autotune.engine.live import LiveLimits
from autotune.engine.live_scheduler import NAMES, InForce, SharedFileLimits
from autotune.engine.protocol import RunningEngine
from autotune.engine.registry import create_engine
from autotune.space.config import EngineConfig
from autotune.spec.study import StudySpec
from autotune.testing.engine_contract import start

pytestmark = [pytest.mark.real_engine, pytest.mark.slow]

SEQS, TOKENS = 16, 512
CONFIG = EngineConfig.of(
    {
        "max_model_len": 512,
        "max_num_seqs": SEQS,
        "max_num_batched_tokens": TOKENS,
        "kv_cache_memory_bytes": "256M",
        "enforce_eager": True,
    }
)
REQUESTS, ANSWER = 6, 32
"""More requests at once than the lowered limit admits, long enough to be seen side by side."""
LOOK = 0.05
"""Seconds between two looks at the engine's metrics."""


@dataclass
class KeptLimits:
    """Makes the limits as usual, and keeps them for the test to read."""

    names: frozenset[str] = NAMES
    made: list[SharedFileLimits] = field(default_factory=list)

    def prepare(self, folder: Path) -> LiveLimits:
        self.made.append(SharedFileLimits(folder / "live-limits"))
        return self.made[-1]


@dataclass(frozen=True)
class Seen:
    """Most requests that ran, and that waited, at one look."""

    running: float
    waiting: float


async def complete(session: aiohttp.ClientSession, running: RunningEngine, number: int) -> None:
    body = {"model": running.served_model, "prompt": f"{number} is", "max_tokens": ANSWER, "ignore_eos": True}
    async with session.post(f"{running.url}/v1/completions", json=body) as reply:
        assert reply.status == 200, await reply.text()
        assert (await reply.json())["usage"]["completion_tokens"] == ANSWER


async def side_by_side(running: RunningEngine) -> Seen:
    """Send all requests at once and watch the engine until the last is answered."""
    looks: list[tuple[float, float]] = []
    headers = {"Authorization": f"Bearer {running.api_key}"}
    async with aiohttp.ClientSession(headers=headers, trust_env=False) as session:
        sent = asyncio.gather(*(complete(session, running, number) for number in range(REQUESTS)))
        while not sent.done():
            values = await running.metrics()
            looks.append((values["vllm:num_requests_running"], values["vllm:num_requests_waiting"]))
            await asyncio.wait([sent], timeout=LOOK)
        await sent
    return Seen(max(one for one, _ in looks), max(one for _, one in looks))


async def test_limits_are_in_force_held_capped_and_taken_back(cpu_vllm: CpuEngine, tmp_path: Path) -> None:
    spec = {"name": "live", "model": "smollm2-135m", "engine": {"python": "cpu", "ready_timeout": 400}}
    kept = KeptLimits()
    running = await start(create_engine(StudySpec.model_validate(spec), live=kept), CONFIG, tmp_path, [])
    try:
        (limits,) = kept.made
        assert limits.in_force() == InForce(0, 0, 0, 0), "nothing was asked for yet"
        said = dict(running.resolved.values)
        assert said.keys() >= NAMES, "where a start leaves a limit open, this is what may not be exceeded"
        assert (said["max_num_seqs"], said["max_num_batched_tokens"]) == (SEQS, TOKENS)
        as_started = await side_by_side(running)
        assert 2 < as_started.running <= REQUESTS

        assert await running.reconfigure({"max_num_seqs": 2})
        lowered = await side_by_side(running)
        assert limits.in_force() == InForce(1, 2, TOKENS, 0)
        assert lowered.running == 2
        assert lowered.waiting > 0

        assert await running.reconfigure({"max_num_seqs": 4 * SEQS, "max_num_batched_tokens": 64 * TOKENS})
        assert (await side_by_side(running)).running > 2
        assert limits.in_force() == InForce(2, SEQS, TOKENS, 0), "never above what the engine was started with"

        assert await running.reconfigure({"max_num_batched_tokens": 64, "long_prefill_token_threshold": 32})
        await side_by_side(running)
        assert limits.in_force() == InForce(3, SEQS, 64, 32)

        assert await running.reconfigure({})
        back = await side_by_side(running)
        assert limits.in_force() == InForce(4, SEQS, TOKENS, 0), "as started"
        assert 2 < back.running <= REQUESTS
        assert not await running.reconfigure({"block_size": 16}), "needs a restart"
        assert running.failure() is None
    finally:
        report = await running.stop()
    assert report.leftovers == ()
