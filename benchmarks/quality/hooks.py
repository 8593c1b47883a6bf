"""vLLM's hooks (scoring by ids, trace replay) on the real engine, against the gate's way without them.

    pip install --target TRITON --no-deps triton==3.9.0
    python -m benchmarks.quality.hooks TRITON          # writes hooks.json; power.py makes the page of it

The hooks need vLLM's V2 model runner, and that needs Triton, which has no back end for CPUs. Here Triton's own
interpreter runs the kernels (`TRITON_INTERPRET=1`) behind a back end in name only (`interpreted/`): vLLM itself is
unchanged, its answers are real, its speed means nothing. Grammars are left out: their kernel is more than the
interpreter can do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from autotune.engine.cpu_setup import ensure
from autotune.quality.answers import Reply, ScorerError
from autotune.quality.divergence import Divergence, statistics
from autotune.quality.hooks import NONE, Hooks
from autotune.quality.observe import Suite, observe_traces, observe_windows, record
from autotune.quality.reference import Reference
from autotune.quality.wire import HttpScorer
from benchmarks.quality.power import HERE, damaged_copy, engine, load_weights

ARGS = {
    "max_model_len": 1024, "kv_cache_memory_bytes": "256M", "enforce_eager": True, "max_num_seqs": 8,
    "max_num_batched_tokens": 1024, "enable_scale_out": True, "enable_trace_replay": True,
}  # fmt: skip
SUITE = Suite(documents=6, positions=32, concurrency=4)
DAMAGES = (("none", 0.0), ("noise", 0.2), ("int4", 32.0))


@dataclass(frozen=True, slots=True)
class Compared:
    """One set of weights, looked at with the hooks and without: KL with its interval, positions, requests, seconds."""

    name: str
    hooks: bool
    kl: tuple[float, float, float]
    decode_kl: tuple[float, float, float]
    positions: int
    decode_positions: int
    requests: int
    seconds: float


class Counting(HttpScorer):
    """Counts requests; has no structured answers."""

    count = 0

    async def chat(self, body: Mapping[str, object]) -> Reply:
        raise ScorerError("not under the interpreter", 400)

    async def _post(self, path: str, body: Mapping[str, object]) -> dict[str, object]:
        self.count += 1
        return await super()._post(path, body)


def environment(triton: Path, folder: Path) -> dict[str, str]:
    """Variables of an engine on Triton's interpreter; the back end's package is written into `folder`."""
    shutil.copytree(HERE / "interpreted", folder / "interpreted_triton", dirs_exist_ok=True)
    named = folder / "interpreted_triton-0.dist-info"
    named.mkdir(parents=True, exist_ok=True)
    (named / "METADATA").write_text("Metadata-Version: 2.1\nName: interpreted-triton\nVersion: 0\n", "utf-8")
    (named / "entry_points.txt").write_text("[triton.backends]\ncpu = interpreted_triton\n", "utf-8")
    return {
        "PYTHONPATH": os.pathsep.join((str(folder), str(triton))), "TRITON_INTERPRET": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
    }  # fmt: skip


async def look(scorer: Counting, reference: Reference, name: str, hooks: Hooks) -> Compared:
    begin, before = time.monotonic(), scorer.count
    read = [item for item, _ in await observe_windows(scorer, reference.windows[: reference.documents], hooks)]
    wrote = [item for item, _ in await observe_traces(scorer, reference.traces, SUITE.concurrency, hooks)]
    return Compared(
        name, hooks != NONE, _kl(read), _kl(wrote), sum(item.positions for item in read),
        sum(item.positions for item in wrote), scorer.count - before, time.monotonic() - begin,
    )  # fmt: skip


def _kl(documents: Sequence[Divergence]) -> tuple[float, float, float]:
    found = statistics(documents).kl
    return found.value, found.low, found.high


async def compare(triton: Path, folder: Path) -> list[Compared]:
    cpu = ensure()
    found: list[Compared] = []
    async with (
        engine(cpu.model, folder / "engine-hooks", ARGS, environment(triton, folder / "backend")) as running,
        Counting(running.url, running.served_model, running.api_key) as scorer,
    ):
        reference, again = await record(scorer, SUITE, model="smollm2-135m", version=cpu.version, key="hooks")
        if not (again.hooks.by_ids and again.hooks.replay):
            raise SystemExit(f"the engine has {again.hooks}, see {running.log}")
        for kind, size in DAMAGES:
            if kind != "none":
                copy = damaged_copy(cpu.python, cpu.model, folder, kind, size)
                await load_weights(running, copy)
                shutil.rmtree(copy)
            for hooks in (NONE, again.hooks):
                found.append(await look(scorer, reference, f"{kind} {size:g}" if size else kind, hooks))
                print(found[-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("triton", type=Path, help="folder that holds the package triton")
    parser.add_argument("--folder", type=Path, default=Path("build/quality-hooks"), help="for weights and logs")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = asyncio.run(compare(options.triton.resolve(), options.folder.resolve()))
    (HERE / "hooks.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
