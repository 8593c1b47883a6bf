"""Two real engines behind the router, and an engine that is healthy and does not serve; both at once, as starts wait.

Two cores start two engines in the time of one, so the module starts all of its engines together and the tests look at
what came of it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.engine.client import EngineClient
from autotune.engine.cpu_setup import CpuEngine
from autotune.engine.failure_values import FailureClass
from autotune.engine.protocol import Lease, RunningEngine, StartFailure, StopReport
from autotune.engine.registry import create_engine
from autotune.engine.running_split import RunningSplit
from autotune.engine.stages import Stage
from autotune.host.leases import LeaseBook
from autotune.load.measure import measure
from autotune.load.report import LevelReport, Target
from autotune.space.config import EngineConfig
from autotune.spec.study import LoadSpec, StudySpec
from tests.engine.tiny_models import tiny_llama, tiny_moe

pytestmark = [pytest.mark.real_engine, pytest.mark.long]

ARGS = {
    "max_model_len": 1024,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 128 << 20,
    "load_format": "dummy",
    "enable_prefix_caching": False,
}
THRESHOLD = 128
LOAD = LoadSpec.model_validate(
    {
        "input_tokens": {"kind": "uniform", "low": 16, "high": 400, "mean": 200},
        "output_tokens": 8,
        "levels": [4],
        "warmup": {"requests": 4, "max_duration": "30s", "tolerance": "50%"},
        "window": {"duration": "4s", "requests": 30, "max_duration": "120s"},
    }
)


@dataclass(frozen=True)
class Outcome:
    """What came of the module's engines."""

    experts: StartFailure | str
    level: LevelReport
    routed: dict[str, int]
    prompt_tokens: dict[str, float]
    stopped: StopReport
    ports: int


@pytest.fixture(scope="module")
def outcome(cpu_vllm: CpuEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    folder = tmp_path_factory.mktemp("split")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_STATE", str(folder / "state"))
        yield asyncio.run(both(cpu_vllm, folder))


async def both(cpu_vllm: CpuEngine, folder: Path) -> Outcome:
    experts, split = await asyncio.gather(expert_parallel(cpu_vllm, folder), prefill_and_decode(cpu_vllm, folder))
    level, routed, prompts, stopped = split
    return Outcome(experts, level, routed, prompts, stopped, len(LeaseBook().holders()))


def study(model: Path, **more: object) -> StudySpec:
    engine = {"kind": "vllm", "python": "cpu", "args": ARGS, "ready_timeout": 600, "live": False, "fast_start": False}
    spec = {"name": "split-real", "model": str(model), "hardware": {"gpus": 0}, "quality": {"enabled": False}}
    return StudySpec.model_validate({**spec, "engine": {**engine, **more.pop("engine", {})}, **more})  # type: ignore[dict-item]


async def expert_parallel(cpu_vllm: CpuEngine, folder: Path) -> StartFailure | str:
    """Expert parallel on two ranks of the CPU build: it comes up, and its workers die of the first request."""
    model = await asyncio.to_thread(tiny_moe, cpu_vllm, folder / "tiny-moe")
    engine = create_engine(study(model))
    cores = sorted(os.sched_getaffinity(0))
    binding = {"VLLM_CPU_OMP_THREADS_BIND": f"{cores[0]}|{cores[-1]}"}  # by itself it asks for a NUMA node a rank
    config = EngineConfig.of({**ARGS, "tensor_parallel_size": 2, "enable_expert_parallel": True}, binding)
    started = await engine.start(config, Lease((), 0), folder=folder / "experts")
    if isinstance(started, StartFailure):
        return started
    await started.stop()
    return "it serves"


async def prefill_and_decode(
    cpu_vllm: CpuEngine, folder: Path
) -> tuple[LevelReport, dict[str, int], dict[str, float], StopReport]:
    """One engine for long prompts, one for short ones; no cache is handed on."""
    model = await asyncio.to_thread(tiny_llama, cpu_vllm, folder / "tiny-llama")
    engine = create_engine(study(model, topology="disaggregated"))
    settings = {"topology.prefill": 1, "router.threshold": THRESHOLD, "decode.max_num_seqs": 8}
    running = await engine.start(EngineConfig.of({**ARGS, **settings}), Lease((), 0), folder=folder / "trial")
    assert isinstance(running, RunningSplit), running
    try:
        assert dict(running.resolved.values)["max_num_seqs"] == 8
        assert running.resolved.mismatches == ()
        before, given = await running.metrics(), await routed(running)
        target = Target(running.url, running.served_model, running.api_key)
        report = await measure(target, LOAD, trial_seed=1, folder=folder / "load", metrics=running.metrics)
        after = await running.metrics()
        counted = {name: count - given[name] for name, count in (await routed(running)).items()}
        key = 'vllm:prompt_tokens_total{engine="%s"}'
        prompts = {name: after[key % name] - before[key % name] for name in counted}
    finally:
        stopped = await running.stop()
    return report.levels[0], counted, prompts, stopped


async def routed(running: RunningEngine) -> dict[str, int]:
    """How many requests each engine was given."""
    client = EngineClient(running.url, running.api_key)
    reply = await client.get("/router")
    await client.close()
    requests = reply.json()["requests"]
    assert isinstance(requests, dict)
    return requests


def test_healthy_is_not_serving(outcome: Outcome) -> None:
    failed = outcome.experts
    if failed == "it serves":
        pytest.skip("expert parallel works in this build of vLLM: nothing is healthy and does not serve")
    assert isinstance(failed, StartFailure) and failed.log is not None
    text = failed.log.read_text(errors="replace")
    assert "Application startup complete" in text, "it has said that it is up"
    assert 'GET /health HTTP/1.1" 200' in text, "and that it is healthy"
    assert failed.failure.stage is Stage.SERVING
    assert failed.failure.failure_class in (
        FailureClass.WORKER_CRASH, FailureClass.WORKER_DIED, FailureClass.UNKNOWN,
    ), failed.failure  # fmt: skip


def test_long_and_short_prompts_are_answered_by_different_engines(outcome: Outcome) -> None:
    assert outcome.level.requests >= 30 and outcome.level.errors == 0
    assert set(outcome.routed) == {"prefill-0", "decode-0"}
    assert min(outcome.routed.values()) >= 5, outcome.routed
    mean = {name: outcome.prompt_tokens[name] / count for name, count in outcome.routed.items()}
    assert mean["decode-0"] < THRESHOLD < mean["prefill-0"], mean
    engine = dict(outcome.level.engine)
    assert engine["engine_prefill-0_generation_tokens"] > 0 and engine["engine_decode-0_generation_tokens"] > 0
    assert outcome.stopped.leftovers == ()
    assert outcome.ports == 0
