"""The real vLLM (on the CPU) through the process engine: start, proof, probe, kill -9, stop, nothing left.

Three starts in all; each takes half a minute on two quiet cores.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.engine.cpu_setup import CpuEngine
from autotune.engine.protocol import Engine, RunningEngine
from autotune.engine.registry import create_engine
from autotune.engine.runs import RUN_VARIABLE, START_VARIABLE, current_run, read_starts
from autotune.engine.supervised import marked
from autotune.engine.supervisor import shm_names, shm_of
from autotune.host.processes import environment_value, own_pids, start_ticks
from autotune.space.config import EngineConfig
from autotune.spec.study import StudySpec
from autotune.testing.engine_contract import check_log, check_serving, port_of, start

pytestmark = [pytest.mark.real_engine, pytest.mark.slow]

CONFIG = EngineConfig.of(
    {
        "max_model_len": 512,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 512,
        "kv_cache_memory_bytes": "256M",
        "enforce_eager": True,
        "dtype": "bfloat16",
    }
)


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AUTOTUNE_STATE", str(tmp_path / "state"))
    shared = unused_shm()
    yield
    assert set(marked(RUN_VARIABLE, current_run().run)) - {os.getpid()} == set()
    assert unused_shm() - shared == set()
    assert read_starts(current_run().run) == ()


def unused_shm() -> set[str]:
    names = shm_names()
    return names - shm_of(list(own_pids()), names)


def engine() -> Engine:
    spec = {"name": "real", "model": "smollm2-135m", "engine": {"kind": "vllm", "python": "cpu", "ready_timeout": 400}}
    return create_engine(StudySpec.model_validate(spec))


def process_named(running: RunningEngine, title: str) -> int:
    for pid in running.processes():
        if title in Path(f"/proc/{pid}/comm").read_text():
            return pid
    raise AssertionError(f"no {title} among {running.processes()}")


async def noticed(running: RunningEngine) -> float:
    began = time.monotonic()
    while running.failure() is None:
        assert time.monotonic() - began < 15, "the death was not noticed"
        await asyncio.sleep(0.02)
    return time.monotonic() - began


async def test_starts_serves_says_what_runs_and_leaves_nothing(cpu_vllm: CpuEngine, tmp_path: Path) -> None:
    phases: list[str] = []
    running = await start(engine(), CONFIG, tmp_path, phases)
    try:
        await check_serving(running, keyed=True)
        check_log(running)
        resolved = running.resolved
        assert resolved.mismatches == ()
        assert resolved.version.startswith(cpu_vllm.version)
        assert resolved.kv_cache_tokens > 0
        assert dict(resolved.values)["max_num_seqs"] == 4
        assert {"weights", "kv_cache", "serving"} <= set(phases)
        assert (await running.metrics())["vllm:generation_tokens_total"] >= 2
        assert await running.reset_caches()
        marks = [environment_value(pid, START_VARIABLE) for pid in running.processes()]
        assert all(marks), "a process has lost its mark, so `autotune clean` would not find it"
    finally:
        report = await running.stop()
    assert report.leftovers == ()
    assert report.seconds < 15
    assert not Path(f"/proc/net/tcp/{port_of(running)}").exists()


@pytest.mark.parametrize("victim", [pytest.param("main", marks=pytest.mark.long), "VLLM::EngineCor"])
async def test_killed_process_is_noticed_and_its_orphans_are_ended(
    cpu_vllm: CpuEngine, tmp_path: Path, victim: str
) -> None:
    running = await start(engine(), CONFIG, tmp_path, [])
    pids = running.processes()
    os.kill(min(pids) if victim == "main" else process_named(running, victim), signal.SIGKILL)
    seconds = await noticed(running)
    report = await running.stop()
    assert report.leftovers == ()
    assert [pid for pid in pids if start_ticks(pid) is not None] == []
    assert seconds < 1.5
