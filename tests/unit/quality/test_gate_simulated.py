"""The gate on the simulator: 8-bit weights differ as they do on a card, and a strict study refuses them."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.engine.protocol import Lease, StartFailure
from autotune.engine.registry import create_engine
from autotune.quality.gate import gate_for
from autotune.quality.report import QualityReport
from autotune.space.config import EngineConfig
from autotune.spec.study import StudySpec

BASELINE = EngineConfig.of({"max_num_seqs": 32})


class Memory(dict[str, str]):
    def put(self, key: str, body: str) -> None:
        self[key] = body


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_STATE", str(tmp_path / "state"))


def study(kl_limit: float) -> StudySpec:
    return StudySpec.model_validate(
        {"name": "sim", "model": "llama-3.1-8b", "load": {"levels": [16]},
         "engine": {"kind": "simulated", "simulate": {"speed": 50},
                    "env": {"AUTOTUNE_SIM_PROCS": "1", "AUTOTUNE_SIM_STARTUP": "0"}},
         "quality": {"documents": 12, "positions": 64, "kl_limit": kl_limit}}
    )  # fmt: skip


async def check(spec: StudySpec, memory: Memory, config: EngineConfig, folder: Path) -> QualityReport:
    gate = gate_for(spec, memory, BASELINE)
    assert gate is not None
    engine = await create_engine(spec).start(config, Lease((), 0), folder=folder)
    assert not isinstance(engine, StartFailure), engine.failure.reason
    try:
        return await gate.check(engine, config, folder)
    finally:
        await engine.stop()


async def test_eight_bit_weights_pass_a_usual_limit_and_fail_a_strict_one(tmp_path: Path) -> None:
    memory, fp8 = Memory(), BASELINE.merged({"quantization": "fp8"})
    usual, strict = study(0.02), study(0.002)
    assert (await check(usual, memory, BASELINE, tmp_path)).verdict == "passed"
    lenient = await check(usual, memory, fp8, tmp_path)
    kl = next(item for item in lenient.checks if item.name == "kl")
    assert kl.verdict == "passed"
    assert 0.003 < kl.estimate.low < kl.estimate.high < 0.012
    refused = await check(strict, memory, fp8, tmp_path)
    assert refused.verdict == "failed"
    assert refused.violation > 0.5
    assert lenient.precision_key == refused.precision_key
