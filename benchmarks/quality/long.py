"""The whole gate with long contexts on the real engine: other precisions of the same weights, and damaged ones.

    python -m benchmarks.quality.long                  # writes long.json; power.py makes the page of it
    python -m benchmarks.quality.long --context 16640  # also 16,384 tokens: beyond what the model was trained for

A study on a card looks at long contexts by itself. On this engine it would not (a prompt of 4,096 tokens takes it some
ten seconds), so the suite is told to. Each precision has a start of its own; the baseline's leaves the reference.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from autotune.engine.cpu_setup import ensure
from autotune.engine.protocol import RunningEngine
from autotune.quality.gate import Gate, gate_for
from autotune.quality.observe import Suite
from autotune.quality.report import QualityReport
from autotune.space.config import EngineConfig
from autotune.spec.study import StudySpec
from benchmarks.quality.hooks import References
from benchmarks.quality.power import HERE, damaged_copy, engine, load_weights

CONTEXT = 4352
TRAINED = 8192
"""Longest context of the model."""
SUITE = Suite(documents=6, positions=64, concurrency=2, long=True)
PRECISIONS: tuple[Mapping[str, str], ...] = (
    {"kv_cache_dtype": "fp8_e4m3"},
    {"kv_cache_dtype": "fp8_e5m2"},
    {"dtype": "float32"},
)
DAMAGE = ("noise", 0.5)


@dataclass(frozen=True, slots=True)
class Row:
    """One check of one engine: the mean KL with its 95 % interval in nats per token, and what follows.

    Attributes:
        engine: what was changed.
        check: `kl`, `kl[decode]`, `kl[4k]`, ...
        positions: that were compared.
        seconds: of the whole gate.
        overall: the gate's verdict.
    """

    engine: str
    check: str
    kl: tuple[float, float, float]
    positions: int
    noise: float
    limit: float
    verdict: str
    seconds: float
    overall: str


def rows(name: str, report: QualityReport) -> list[Row]:
    found = [
        Row(name, check.name, (check.estimate.value, check.estimate.low, check.estimate.high), check.estimate.n,
            check.noise, check.limit, check.verdict.value, report.seconds, report.verdict.value)
        for check in report.checks if check.name.startswith("kl")
    ]  # fmt: skip
    for row in found:
        print(row, flush=True)
    return found


async def measure(folder: Path, context: int) -> list[Row]:
    """The baseline against itself, damaged, and each other precision.

    Args:
        folder: for weights and logs.
        context: `max_model_len`; decides which lengths are looked at.
    """
    cpu = ensure()
    args = {"max_model_len": context, "max_num_batched_tokens": 2048, "kv_cache_memory_bytes": "1G",
            "enforce_eager": True, "dtype": "bfloat16"}  # fmt: skip
    env = {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"} if context > TRAINED else {}
    baseline = EngineConfig.of(dict(args), env=env)
    spec = StudySpec.model_validate({"name": "long", "model": str(cpu.model), "hardware": {"gpus": 0}})
    short = gate_for(spec, References(), baseline)
    assert short is not None
    gate: Gate = replace(short, suite=SUITE)

    async def judged(name: str, running: RunningEngine, config: EngineConfig) -> list[Row]:
        return rows(name, await gate.check(running, config, folder))

    async with engine(cpu.model, folder / "engine", args, env) as running:
        found = await judged("bfloat16, recording", running, baseline)
        found += await judged("bfloat16, again", running, baseline)
        copy = damaged_copy(cpu.python, cpu.model, folder, *DAMAGE)
        await load_weights(running, copy)
        shutil.rmtree(copy)
        found += await judged(f"{DAMAGE[0]} {DAMAGE[1]:g}", running, baseline)
    for changed in PRECISIONS:
        name = " ".join(f"{key}={value}" for key, value in changed.items())
        async with engine(
            cpu.model, folder / f"engine-{'-'.join(changed.values())}", {**args, **changed}, env
        ) as other:
            found += await judged(name, other, EngineConfig.of({**args, **changed}, env=env))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/quality-long"), help="for weights and logs")
    parser.add_argument("--context", type=int, default=CONTEXT, help="max_model_len of the engines")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    found = asyncio.run(measure(options.folder.resolve(), options.context))
    name = "long.json" if options.context <= TRAINED else f"long-{options.context}.json"
    (HERE / name).write_text(json.dumps([asdict(row) for row in found], indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
