"""The quality gate on the real vLLM: the same engine always passes, damaged weights fail, and loading them is undone.

One start. Damaged weights are loaded into the running engine by vLLM's own `reload_weights`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from autotune.engine.cpu_setup import CpuEngine
from autotune.engine.protocol import Lease, RunningEngine, StartFailure
from autotune.engine.registry import create_engine
from autotune.quality.gate import Gate, gate_for
from autotune.quality.report import QualityReport, QualityVerdict
from autotune.space.config import EngineConfig
from autotune.spec.study import StudySpec

pytestmark = [pytest.mark.real_engine, pytest.mark.slow]

REPEATS = 20
DAMAGE = Path(__file__).parents[2] / "benchmarks" / "quality" / "damage.py"
CONFIG = EngineConfig.of({"max_model_len": 512, "kv_cache_memory_bytes": "256M", "enforce_eager": True})
SPEC = StudySpec.model_validate(
    {"name": "quality", "model": "smollm2-135m", "hardware": {"gpus": 0}, "load": {"levels": [4]},
     "engine": {"python": "cpu", "ready_timeout": 400}, "quality": {"documents": 4, "positions": 32}}
)  # fmt: skip


class References(dict[str, str]):
    """Keeps references and forgets verdicts, so that every check is made again."""

    def put(self, key: str, body: str) -> None:
        if key.startswith("reference-"):
            self[key] = body


@pytest_asyncio.fixture
async def engine(cpu_vllm: CpuEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunningEngine]:
    monkeypatch.setenv("AUTOTUNE_STATE", str(tmp_path / "state"))
    running = await create_engine(SPEC).start(CONFIG, Lease((), 0), folder=tmp_path / "engine")
    assert not isinstance(running, StartFailure), running.failure.reason
    yield running
    await running.stop()


def gate(memory: References) -> Gate:
    found = gate_for(SPEC, memory, CONFIG)
    assert found is not None
    return found


def damaged(cpu_vllm: CpuEngine, folder: Path, kind: str, size: str) -> Path:
    argv = [str(cpu_vllm.python), str(DAMAGE), str(cpu_vllm.model), str(folder / kind), kind, size]
    subprocess.run(argv, check=True, timeout=300)
    return folder / kind


async def load_weights(engine: RunningEngine, path: Path) -> None:
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}
    headers = {"Authorization": f"Bearer {engine.api_key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{engine.url}/collective_rpc", json=body) as reply,
    ):
        assert reply.status == 200, await reply.text()
    assert await engine.reset_caches()


def told(report: QualityReport) -> str:
    return "; ".join(f"{check.name} {check.verdict}: {check.note}" for check in report.checks)


async def test_the_same_engine_passes_twenty_times_and_damaged_weights_fail(
    engine: RunningEngine, cpu_vllm: CpuEngine, tmp_path: Path
) -> None:
    memory = References()
    baseline = await gate(memory).check(engine, CONFIG, tmp_path)
    assert baseline.verdict is QualityVerdict.PASSED, told(baseline)
    seconds = []
    for _ in range(REPEATS):
        report = await gate(memory).check(engine, CONFIG, tmp_path)
        seconds.append(report.seconds)
        assert report.verdict is QualityVerdict.PASSED, told(report)
        assert not report.cached
    sys.stdout.write(f"baseline {baseline.seconds:.1f} s, a check {sorted(seconds)[REPEATS // 2]:.1f} s (median)\n")

    await load_weights(engine, damaged(cpu_vllm, tmp_path, "int4", "32"))
    report = await gate(memory).check(engine, CONFIG, tmp_path)
    failed = {check.name for check in report.checks if check.verdict is QualityVerdict.FAILED}
    assert report.verdict is QualityVerdict.FAILED, told(report)
    assert "kl" in failed, told(report)
    assert all(
        check.verdict is QualityVerdict.PASSED for check in report.checks if check.name in ("tokenizer", "finite")
    )
    assert report.violation > 1

    await load_weights(engine, cpu_vllm.model)
    report = await gate(memory).check(engine, CONFIG, tmp_path)
    assert report.verdict is QualityVerdict.PASSED, told(report)
