"""Our client as a program of its own, so that it is measured like the others: its whole process tree."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from autotune.load.measure import measure
from autotune.load.report import Target
from autotune.load.vllm_definitions import read_records, vllm_figures
from autotune.spec.study import LoadSpec, WarmupSpec, WindowSpec


async def main(url: str, streams: int, tokens: int, requests: int, itl_share: float | None) -> None:
    load = LoadSpec(
        input_tokens=10,
        output_tokens=tokens,
        levels=[streams],
        itl_share=itl_share,
        warmup=WarmupSpec(requests=0),
        window=WindowSpec(duration=120, max_duration=120),
    )
    with tempfile.TemporaryDirectory() as folder:
        report = await measure(
            Target(url, "mock", vocabulary=32000), load, trial_seed=1, folder=Path(folder), limit=requests
        )
        (level,) = report.levels
        assert level.samples is not None
        figures = vllm_figures(read_records(level.samples))
        records = read_records(level.samples)
        ttft = (records.column("choice") - records.column("sent"))[records.ok] * 1e3
    figures["p50_ttft_ms"] = figures["median_ttft_ms"]
    figures["requests"] = float(len(ttft))
    print(json.dumps(figures))


if __name__ == "__main__":
    share = float(sys.argv[5]) if len(sys.argv) > 5 else None
    asyncio.run(main(sys.argv[1], *(int(text) for text in sys.argv[2:5]), share))
