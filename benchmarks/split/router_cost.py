"""What the router costs: processor time of its process, by streamed token and by request.

    python -m benchmarks.split.router_cost

Two simulated replicas answer as fast as they can; the router's own processor time is read before and after. Wall time
would measure how busy the machine is.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import psutil

from autotune.engine.protocol import Lease
from autotune.engine.registry import create_engine
from autotune.engine.running_split import RunningSplit
from autotune.load.measure import measure
from autotune.load.report import Target
from autotune.space.config import EngineConfig
from autotune.spec.study import LoadSpec, StudySpec

STUDY = {
    "name": "router-cost",
    "model": "llama-3.1-8b",
    "engine": {"kind": "simulated", "simulate": {"card": "h100", "speed": 1, "startup": 0}},
    "hardware": {"gpus": 2},
    "topology": "disaggregated",
}


async def cost(streams: int, output: int) -> tuple[float, int, int]:
    """Processor seconds of the router, and the tokens and requests that they bought."""
    engine = create_engine(StudySpec.model_validate(STUDY))
    load = LoadSpec.model_validate({
        "input_tokens": 128, "output_tokens": output, "levels": [streams],
        "warmup": {"requests": streams, "max_duration": "20s", "tolerance": "50%"}, "window": {"duration": "10s"},
    })  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        running = await engine.start(EngineConfig(), Lease((), 0), folder=Path(folder))
        assert isinstance(running, RunningSplit), running
        try:
            router = next(p for p in map(psutil.Process, running.router.processes()) if "python" in p.name())
            spent, told = router.cpu_times(), await running.metrics()
            target = Target(running.url, running.served_model, running.api_key)
            await measure(target, load, trial_seed=1, folder=Path(folder) / "load", metrics=running.metrics)
            now, said = router.cpu_times(), await running.metrics()
        finally:
            await running.stop()
    tokens = said["vllm:generation_tokens_total"] - told["vllm:generation_tokens_total"]
    used = now.user + now.system - spent.user - spent.system
    return used, int(tokens), int(tokens / output)


def main() -> None:
    """Print a table."""
    os.environ.setdefault("AUTOTUNE_STATE", tempfile.mkdtemp(prefix="router-cost-"))
    print("| streams | output | tokens | router's CPU s | us a token | us a request |")
    print("|---|---|---|---|---|---|")
    for streams, output in ((8, 128), (64, 128), (64, 8)):
        used, tokens, requests = asyncio.run(cost(streams, output))
        each, whole = 1e6 * used / tokens, 1e6 * used / requests
        print(f"| {streams} | {output} | {tokens:,} | {used:.2f} | {each:.0f} | {whole:.0f} |")


if __name__ == "__main__":
    main()
