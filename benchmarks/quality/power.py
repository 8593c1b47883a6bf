"""Detection power of the quality gate on the real vLLM for CPUs.

    python -m benchmarks.quality.power                 # everything, about an hour on two quiet cores
    python -m benchmarks.quality.power --only table    # the tables again from the kept measurements
    python -m benchmarks.quality.power --only round    # the next missing round of repeated runs

Measurements are kept in `measured.json`; what is there already is not measured again (delete the file to start over).

One engine is started with the good weights and leaves the reference. Damaged copies of the weights are then loaded into
the same engine one after the other (vLLM's `reload_weights`), scored on the same texts, and the good weights are loaded
once more at the end to show that loading leaves nothing behind. A wrong RoPE base and a wrong chat template cannot be
loaded into a running engine: each has a start of its own. How often a damage is caught is counted in repeated runs
(`repeats.py`): fresh starts, noise drawn anew.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from autotune.engine.cpu_setup import CpuEngine, ensure
from autotune.engine.protocol import Lease, RunningEngine, StartFailure
from autotune.engine.registry import create_engine
from autotune.quality.candidate import text_checks
from autotune.quality.divergence import Divergence, statistics
from autotune.quality.observe import Suite, observe, record
from autotune.quality.reference import Noise, Reference, read_reference
from autotune.quality.report import QualityVerdict
from autotune.quality.sanity import finite_check
from autotune.quality.verdict import Limits, divergence_checks, verdict_of
from autotune.quality.wire import HttpScorer
from autotune.space.config import EngineConfig
from autotune.spec.study import QualitySpec, StudySpec
from benchmarks.quality import repeats, tables
from benchmarks.quality.repeats import Remembering, Verdict, accuracy

HERE = Path(__file__).parent
GOOD = ("none, repeat 1", "none, repeat 2", "none, repeat 3")
WEIGHTS = (
    *(("noise", size) for size in (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)),
    ("int8", 32.0),
    ("fp8", 0.0),
    ("int4", 32.0),
)
STARTS = (("rope", 10_000.0), ("template", 0.0))
CONFIG = {"max_model_len": 1024, "kv_cache_memory_bytes": "256M", "enforce_eager": True}


@dataclass(frozen=True, slots=True)
class Measured:
    """One damage: divergences by text, the text's own accuracy before and after, and checks that failed in tier 0."""

    name: str
    windows: tuple[Divergence, ...]
    traces: tuple[Divergence, ...]
    accuracy: float
    accuracy_before: float
    broken: tuple[str, ...]
    seconds: float


@asynccontextmanager
async def engine(
    model: Path, folder: Path, args: Mapping[str, object] = CONFIG, env: Mapping[str, str] | None = None
) -> AsyncIterator[RunningEngine]:
    spec = StudySpec.model_validate(
        {"name": "power", "model": str(model), "hardware": {"gpus": 0},
         "engine": {"python": "cpu", "args": dict(args), "env": dict(env or {}), "ready_timeout": 600}}
    )  # fmt: skip
    config = EngineConfig.of(dict(args), env=dict(env or {}))
    running = await create_engine(spec).start(config, Lease((), 0), folder=folder)
    if isinstance(running, StartFailure):
        raise SystemExit(f"the engine does not start: {running.failure.reason} ({running.log})")
    try:
        yield running
    finally:
        await running.stop()


def damaged_copy(python: Path, model: Path, folder: Path, kind: str, size: float, seed: int = 17) -> Path:
    target = folder / f"{kind}-{size:g}-{seed}"
    argv = [str(python), str(HERE / "damage.py"), str(model), str(target), kind, str(size), str(seed)]
    subprocess.run(argv, check=True, timeout=600)
    return target


async def load_weights(running: RunningEngine, path: Path) -> None:
    """Load other weights of the same shape into the engine, and forget what was computed with the old ones."""
    headers = {"Authorization": f"Bearer {running.api_key}"}
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}
    async with (
        aiohttp.ClientSession(trust_env=False, headers=headers) as session,
        session.post(running.url + "/collective_rpc", json=body) as reply,
    ):
        if reply.status != 200:
            raise SystemExit(f"weights cannot be loaded: {reply.status} {await reply.text()}")
    await running.reset_caches()


async def measure(scorer: HttpScorer, reference: Reference, suite: Suite, name: str) -> Measured:
    begin = time.monotonic()
    broken = [check.name for check in await text_checks(scorer, reference) if check.verdict is QualityVerdict.FAILED]
    seen = await observe(scorer, reference, suite.concurrency)
    if finite_check(seen.scored).verdict is QualityVerdict.FAILED:
        broken.append("finite")
    windows = reference.windows[: reference.documents]
    texts = [window.tokens for window in windows]
    read = seen.scored[: len(windows)][::-1]  # they are scored last one first
    return Measured(
        name, seen.windows[::-1], seen.traces, accuracy(texts, read),
        accuracy(texts, [window.scored for window in windows]), tuple(broken),
        time.monotonic() - begin,
    )  # fmt: skip


async def run(folder: Path, suite: Suite, kept: Kept) -> None:
    """Measure what `kept` does not have yet."""
    cpu = ensure()
    reference = await _good_engine(folder, suite, kept, cpu)
    for kind, size in STARTS:
        if (name := _name(kind, size)) in kept.rows:
            continue
        copy = damaged_copy(cpu.python, cpu.model, folder, kind, size)
        async with (
            engine(copy, folder / f"engine-{kind}") as running,
            HttpScorer(running.url, running.served_model, running.api_key) as scorer,
        ):
            kept.add(await measure(scorer, reference, suite, name))


async def run_round(folder: Path, suite: Suite, kept: Kept) -> bool:
    """The next round that lacks a run, or the next engine started on a damaged copy; False where none is missing."""
    cpu = ensure()
    for number in range(repeats.ROUNDS):
        if sizes := repeats.missing(kept.runs, number):
            await _loaded(folder, suite, kept, cpu, number, sizes)
            return True
    for size, number in repeats.unstarted(kept.runs):
        copy = damaged_copy(cpu.python, cpu.model, folder, "noise", size, number)
        async with (
            engine(copy, folder / "engine-copy") as running,
            Remembering(running.url, running.served_model, running.api_key) as scorer,
        ):
            reference = read_reference(folder / "reference.json")
            kept.add_run(await repeats.judged(scorer, reference, suite, size, number, started=True))
        shutil.rmtree(copy)
        return True
    return False


async def _loaded(folder: Path, suite: Suite, kept: Kept, cpu: CpuEngine, number: int, sizes: Sequence[float]) -> None:
    """One fresh start: the good weights first, then noise of every size, drawn from the round's number."""
    file = folder / "reference.json"
    async with (
        engine(cpu.model, folder / f"engine-{number}") as running,
        Remembering(running.url, running.served_model, running.api_key) as scorer,
    ):
        if not file.is_file():
            reference, _ = await record(scorer, suite, model="smollm2-135m", version=cpu.version, key="power")
            file.write_text(reference.to_json(), "utf-8")
        reference = read_reference(file)
        for size in sizes:
            if size:
                copy = damaged_copy(cpu.python, cpu.model, folder, "noise", size, number)
                await load_weights(running, copy)
                shutil.rmtree(copy)
            kept.add_run(await repeats.judged(scorer, reference, suite, size, number, started=False))


async def _good_engine(folder: Path, suite: Suite, kept: Kept, cpu: CpuEngine) -> Reference:
    """Everything that one start with the good weights can show."""
    file = folder / "reference.json"
    missing = [item for item in WEIGHTS if _name(*item) not in kept.rows]
    if file.is_file() and not missing and set(GOOD) <= kept.rows.keys():
        return read_reference(file)
    async with (
        engine(cpu.model, folder / "engine") as running,
        HttpScorer(running.url, running.served_model, running.api_key) as scorer,
    ):
        reference, _ = await record(scorer, suite, model="smollm2-135m", version=cpu.version, key="power")
        file.write_text(reference.to_json(), "utf-8")
        kept.noise = dict(reference.noise)
        for name in GOOD:
            if name not in kept.rows:
                kept.add(await measure(scorer, reference, suite, name))
        for kind, size in missing:
            await load_weights(running, damaged_copy(cpu.python, cpu.model, folder, kind, size))
            kept.add(await measure(scorer, reference, suite, _name(kind, size)))
        await load_weights(running, cpu.model)
        kept.add(await measure(scorer, reference, suite, "none, loaded again"))
    return reference


def _name(kind: str, size: float) -> str:
    return f"{kind} {size:g}"


def power(measured: Measured, noise: Mapping[str, Noise], documents: int, draws: int = 100) -> tuple[float, float]:
    """Shares of random subsets of `documents` texts on which the gate fails, and on which it does not pass."""
    if measured.broken:
        return 1.0, 1.0
    generator = np.random.default_rng(documents)
    limits = Limits.of(QualitySpec())
    verdicts = []
    for _ in range(draws):
        windows = [measured.windows[i] for i in generator.choice(len(measured.windows), documents, replace=False)]
        traces = [
            measured.traces[i]
            for i in generator.choice(len(measured.traces), min(len(measured.traces), max(4, documents // 2)), False)
        ]
        verdicts.append(verdict_of(divergence_checks(windows, traces, noise, limits)))
    failed = sum(verdict is QualityVerdict.FAILED for verdict in verdicts)
    passed = sum(verdict is QualityVerdict.PASSED for verdict in verdicts)
    return failed / draws, 1 - passed / draws


@dataclass
class Kept:
    """The measurements so far, in a file that is written after each of them."""

    path: Path
    documents: int
    positions: int
    rows: dict[str, Measured] = field(default_factory=dict)
    noise: dict[str, Noise] = field(default_factory=dict)
    runs: list[Verdict] = field(default_factory=list)

    def load(self) -> None:
        if not self.path.is_file():
            return
        data = json.loads(self.path.read_text("utf-8"))
        if (data["documents"], data["positions"]) != (self.documents, self.positions):
            raise SystemExit(f"{self.path} was made with other sizes; delete it to start over")
        self.rows = {row.name: row for row in map(read_measured, data["measured"])}
        self.noise = {name: Noise(**item) for name, item in data["noise"].items()}
        self.runs = [Verdict(**{**item, "kl": tuple(item["kl"])}) for item in data.get("runs", ())]

    def add(self, row: Measured) -> None:
        self.rows[row.name] = row
        print(row.name, statistics(row.windows).kl, row.broken, f"{row.seconds:.0f} s", flush=True)
        self._write()

    def add_run(self, run: Verdict) -> None:
        self.runs.append(run)
        print(run, flush=True)
        self._write()

    def _write(self) -> None:
        body = {"documents": self.documents, "positions": self.positions,
                "noise": {name: asdict(item) for name, item in self.noise.items()},
                "measured": [asdict(item) for item in self.rows.values()],
                "runs": [asdict(item) for item in self.runs]}  # fmt: skip
        self.path.write_text(json.dumps(body), "utf-8")

    def ordered(self) -> list[Measured]:
        """In the order of the lists above."""
        names = [*GOOD, "none, loaded again", *(_name(*item) for item in (*WEIGHTS, *STARTS))]
        return [self.rows[name] for name in names if name in self.rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/quality-power"), help="for weights and logs")
    parser.add_argument("--documents", type=int, default=24)
    parser.add_argument("--positions", type=int, default=64)
    parser.add_argument("--only", choices=["table", "round"])
    options = parser.parse_args()
    kept = Kept(HERE / "measured.json", options.documents, options.positions)
    kept.load()
    if options.only != "table":
        options.folder.mkdir(parents=True, exist_ok=True)
        suite = Suite(options.documents, options.positions, concurrency=4)
        asyncio.run(_measure_all(options.folder.resolve(), suite, kept, one_round=options.only == "round"))
    if options.only == "round":
        return
    text = tables.page(
        kept.ordered(), kept.runs, kept.noise, power, kept.documents, kept.positions, tables.further(HERE)
    )
    (HERE / "RESULTS.md").write_text(text, "utf-8")
    sys.stdout.write(text)


async def _measure_all(folder: Path, suite: Suite, kept: Kept, *, one_round: bool) -> None:
    if one_round:
        await run_round(folder, suite, kept)
        return
    await run(folder, suite, kept)
    while await run_round(folder, suite, kept):
        pass


def read_measured(item: Mapping[str, Any]) -> Measured:
    documents = {key: tuple(Divergence(**row) for row in item[key]) for key in ("windows", "traces")}
    return Measured(**{**item, **documents, "broken": tuple(item["broken"])})


if __name__ == "__main__":
    main()
