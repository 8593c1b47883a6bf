"""Two real engines that hand a prompt's KV cache on through NIXL. Opt-in: NIXL is no part of the CPU engine.

pip install --no-deps --target /tmp/nixl nixl==1.5.1 nixl-cu12==1.5.1
AUTOTUNE_TEST_NIXL=/tmp/nixl pytest tests/engine/test_split_nixl.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.engine.client import EngineClient
from autotune.engine.cpu_setup import CpuEngine
from autotune.engine.protocol import Lease
from autotune.engine.registry import create_engine
from autotune.engine.running_split import RunningSplit
from autotune.space.config import EngineConfig
from autotune.spec.study import StudySpec
from tests.engine.tiny_models import tiny_llama

WHERE = os.environ.get("AUTOTUNE_TEST_NIXL", "")
pytestmark = [
    pytest.mark.real_engine,
    pytest.mark.slow,
    pytest.mark.skipif(not WHERE, reason="AUTOTUNE_TEST_NIXL names no folder with NIXL (see the head of the file)"),
]
ARGS = {
    "max_model_len": 1024,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 128 << 20,
    "load_format": "dummy",
    "enable_prefix_caching": False,
}


async def test_a_cache_that_was_handed_on_gives_the_same_answer(
    cpu_vllm: CpuEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "kernels"))  # a cache of torch's, made to stay
    engine = create_engine(
        StudySpec.model_validate({
            "name": "nixl", "model": str(tiny_llama(cpu_vllm, tmp_path / "tiny-llama")), "hardware": {"gpus": 0},
            "engine": {"python": "cpu", "args": ARGS, "ready_timeout": 600,
                       "env": {"PYTHONPATH": WHERE, "UCX_TLS": "tcp,self,sysv,posix,cma"}},
            "topology": {"kind": "disaggregated", "transfer": "nixl"}, "quality": {"enabled": False},
        })
    )  # fmt: skip
    config = EngineConfig.of({**ARGS, "topology.prefill": 1, "router.threshold": 256})
    running = await engine.start(config, Lease((), 0), folder=tmp_path / "trial")
    assert isinstance(running, RunningSplit), running
    whole, alone = EngineClient(running.url, running.api_key), running.members[1].engine
    decode = EngineClient(alone.url, alone.api_key)
    try:
        before = await running.metrics()
        for length in (10, 300, 600):
            body = {"model": running.served_model, "prompt": [(7 * at) % 5000 + 10 for at in range(length)],
                    "max_tokens": 12, "temperature": 0, "ignore_eos": True}  # fmt: skip
            answers = [await client.post("/v1/completions", body) for client in (whole, decode)]
            assert [reply.status for reply in answers] == [200, 200]
            handed, own = (reply.json()["choices"][0]["text"] for reply in answers)  # type: ignore[index]
            assert handed == own and handed, f"{length} tokens"
        after = await running.metrics()
        moved = after["vllm:nixl_bytes_transferred_sum"] - before.get("vllm:nixl_bytes_transferred_sum", 0.0)
        # keys and values of 4 layers, 4 heads of 32 numbers in bfloat16, in whole blocks
        assert moved >= 900 * 2 * 4 * 4 * 32 * 2
        assert after["vllm:nixl_num_failed_transfers_total"] == 0
        assert (await whole.get("/router")).json()["handed_on"] == 3, "two prompts, and the proof at the start"
    finally:
        await whole.close()
        await decode.close()
        assert (await running.stop()).leftovers == ()
