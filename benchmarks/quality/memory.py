"""What the gate's prompts cost in memory on the real engine, against longer ones.

    python -m benchmarks.quality.memory        # writes memory.json; power.py makes the page of it

The peak of all engine processes (VmHWM, reset before each part) above what they held before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from autotune.engine.cpu_setup import ensure
from autotune.engine.protocol import RunningEngine
from autotune.quality import corpus
from autotune.quality.observe import CHUNK, SCORING_IN_FLIGHT
from autotune.quality.wire import HttpScorer
from benchmarks.quality.power import HERE, engine

CONTEXT = 4352
ARGS = {
    "max_model_len": CONTEXT, "max_num_batched_tokens": CONTEXT, "kv_cache_memory_bytes": "512M", "enforce_eager": True,
}  # fmt: skip
POSITIONS = 6 * 1024
"""Scored in every part, so that only the length of the prompts differs."""


@dataclass(frozen=True, slots=True)
class Peak:
    """One part: prompts of so many positions, so many in flight; MiB above what was held before; seconds."""

    positions: int
    in_flight: int
    mib: float
    seconds: float


def held(engine: RunningEngine, field: str) -> float:
    """MiB of all engine processes: `VmRSS` now, `VmHWM` at most since the last reset."""
    total = 0
    for pid in engine.processes():
        lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith(field + ":"))
    return total / 1024


def reset(engine: RunningEngine) -> None:
    for pid in engine.processes():
        Path(f"/proc/{pid}/clear_refs").write_text("5", "utf-8")


async def peak(running: RunningEngine, scorer: HttpScorer, ids: Sequence[int], positions: int, in_flight: int) -> Peak:
    prompts = [tuple(ids[at : at + positions + 1]) for at in range(0, POSITIONS - positions + 1, positions)]
    slots = asyncio.Semaphore(in_flight)

    async def one(prompt: tuple[int, ...]) -> None:
        async with slots:
            await scorer.score(prompt)

    before, begin = held(running, "VmRSS"), time.monotonic()
    reset(running)
    async with asyncio.TaskGroup() as group:
        for prompt in prompts:
            group.create_task(one(prompt))
    found = Peak(positions, in_flight, held(running, "VmHWM") - before, time.monotonic() - begin)
    print(found, flush=True)
    return found


async def measure(folder: Path) -> list[Peak]:
    cpu = ensure()
    async with (
        engine(cpu.model, folder / "engine", ARGS) as running,
        HttpScorer(running.url, running.served_model, running.api_key) as scorer,
    ):
        texts = [await scorer.tokenize(text.content) for text in corpus.texts()]
        ids = corpus.long_text(texts, POSITIONS + 1, 0)
        await scorer.continue_(ids[:4096], 4)  # what a long prompt costs without log-probabilities comes first
        parts = ((128, SCORING_IN_FLIGHT), (CHUNK, SCORING_IN_FLIGHT), (CHUNK, 24), (1024, 1), (3072, 1), (3072, 2))
        return [await peak(running, scorer, ids, positions, in_flight) for positions, in_flight in parts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/quality-memory"), help="for logs")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    found = asyncio.run(measure(options.folder.resolve()))
    (HERE / "memory.json").write_text(json.dumps([asdict(item) for item in found], indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
