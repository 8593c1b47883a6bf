"""Our client and `vllm bench serve` in turn on the real engine: the same figures within what two runs differ by."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import statistics
import sys
from pathlib import Path

import pytest

from autotune.engine.cpu_setup import CpuEngine
from autotune.engine.registry import create_engine
from autotune.space.config import EngineConfig
from autotune.spec.study import StudySpec
from autotune.testing.engine_contract import start

ROOT = Path(__file__).parents[2]
ARGS = {"max_model_len": 512, "max_num_seqs": 4, "max_num_batched_tokens": 512, "kv_cache_memory_bytes": "256M",
        "enforce_eager": True, "dtype": "bfloat16"}  # fmt: skip
TOLERANCES = {"request_throughput": 0.15, "output_throughput": 0.15, "median_tpot_ms": 0.15, "median_itl_ms": 0.15,
              "median_e2el_ms": 0.15, "median_ttft_ms": 0.3}  # fmt: skip
"""Two runs of one client on this engine differ by some per cent already."""

pytestmark = [pytest.mark.real_engine, pytest.mark.long]


def _agreement():
    path = ROOT / "benchmarks" / "client" / "agreement.py"
    spec = importlib.util.spec_from_file_location("agreement", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["agreement"] = module
    spec.loader.exec_module(module)
    return module


async def test_both_clients_agree_on_the_real_engine(cpu_vllm: CpuEngine, tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOTUNE_STATE", str(tmp_path / "state"))
    agreement = _agreement()
    spec = {"name": "real", "model": "smollm2-135m", "engine": {"kind": "vllm", "python": "cpu", "ready_timeout": 400}}
    first, *rest = sorted(os.sched_getaffinity(0))
    if not rest:
        pytest.skip("engine and clients need a core each")
    config = EngineConfig.of(ARGS, env={"VLLM_CPU_OMP_THREADS_BIND": str(first)})
    running = await start(create_engine(StudySpec.model_validate(spec)), config, tmp_path, [])
    try:
        monkeypatch.setenv("OPENAI_API_KEY", running.api_key)
        job = agreement.Job(
            running.url, running.served_model, str(cpu_vllm.python), str(cpu_vllm.model), streams=2, requests=40,
            output_tokens=16, cores=tuple(rest),
        )  # fmt: skip
        found = await asyncio.to_thread(agreement.compare, job, 3)
    finally:
        await running.stop()
    for key, tolerance in TOLERANCES.items():
        ratio = statistics.median(agreement.ratios(found, key))
        assert 1 - tolerance < ratio < 1 / (1 - tolerance), (key, agreement.ratios(found, key))
