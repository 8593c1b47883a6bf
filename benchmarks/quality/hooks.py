"""The whole gate with vLLM's hooks (scoring by ids, trace replay) on the real engine, and without them.

    pip install --target TRITON --no-deps triton==3.9.0
    python -m benchmarks.quality.hooks TRITON          # writes hooks.json; power.py makes the page of it

The hooks need vLLM's V2 model runner, and that needs Triton, which has no back end for CPUs. Here Triton's own
interpreter runs the kernels (`TRITON_INTERPRET=1`) behind a back end in name only (`interpreted/`): vLLM itself is
unchanged, its answers are real. Its speed means nothing (an eighth of a second for a position that is read, a third of
a second for a token that is written), hence few and short texts.
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
from autotune.engine.protocol import RunningEngine
from autotune.quality.answers import Continuation, Scored, ScorerError
from autotune.quality.arrays import Ids
from autotune.quality.candidate import candidate_checks
from autotune.quality.gate import Gate, gate_for
from autotune.quality.reference import Reference
from autotune.quality.report import QualityCheck, QualityVerdict
from autotune.quality.verdict import Limits, verdict_of
from autotune.quality.wire import HttpScorer
from autotune.space.config import EngineConfig
from autotune.spec.study import StudySpec
from benchmarks.quality.power import HERE, damaged_copy, engine, load_weights

ARGS = {
    "max_model_len": 1024, "kv_cache_memory_bytes": "256M", "enforce_eager": True, "max_num_seqs": 8,
    "max_num_batched_tokens": 1024, "enable_scale_out": True, "enable_trace_replay": True,
}  # fmt: skip
QUALITY = {"documents": 4, "positions": 32}
DAMAGES = (("noise", 0.2), ("int4", 32.0))


@dataclass(frozen=True, slots=True)
class Judged:
    """One set of weights, judged with the hooks or without.

    Attributes:
        name: the damage.
        hooks: the gate used both hooks.
        verdict: what it says.
        checks: verdicts of the single checks, by name.
        kl: mean KL while reading and its 95 % interval, nats per token.
        decode_kl: the same while writing.
        positions: compared while reading.
        decode_positions: compared while writing.
        requests: answers of the engine.
        seconds: how long it took; on the interpreter this says little.
    """

    name: str
    hooks: bool
    verdict: str
    checks: Mapping[str, str]
    kl: tuple[float, float, float]
    decode_kl: tuple[float, float, float]
    positions: int
    decode_positions: int
    requests: int
    seconds: float


class References(dict[str, str]):
    """Keeps the reference and forgets verdicts, so that every check is made."""

    def put(self, key: str, body: str) -> None:
        if key.startswith("reference-"):
            self[key] = body


class WithoutHooks(HttpScorer):
    """Takes a server for one that lacks them."""

    async def score_ids(self, tokens: Sequence[int], ids: Ids) -> Scored:
        raise ScorerError("not asked for", 404)

    async def replay(self, tokens: Sequence[int], forced: Sequence[int]) -> Continuation:
        raise ScorerError("not asked for", 404)


def environment(triton: Path, folder: Path) -> dict[str, str]:
    """Variables of an engine on Triton's interpreter; the back end's package is written into `folder`."""
    shutil.copytree(HERE / "interpreted", folder / "interpreted_triton", dirs_exist_ok=True)
    named = folder / "interpreted_triton-0.dist-info"
    named.mkdir(parents=True, exist_ok=True)
    (named / "METADATA").write_text("Metadata-Version: 2.1\nName: interpreted-triton\nVersion: 0\n", "utf-8")
    (named / "entry_points.txt").write_text(
        "[triton.backends]\ncpu = interpreted_triton\n\n"
        "[vllm.general_plugins]\ninterpreted_masks = interpreted_triton.masks:mend\n",
        "utf-8",
    )
    return {
        "PYTHONPATH": os.pathsep.join((str(folder), str(triton))), "TRITON_INTERPRET": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
    }  # fmt: skip


class Bench:
    """The gate of a study on one engine, and the same checks by hand without the hooks."""

    def __init__(self, running: RunningEngine, env: Mapping[str, str], model: Path, folder: Path) -> None:
        spec = StudySpec.model_validate(
            {"name": "hooks", "model": str(model), "hardware": {"gpus": 0}, "load": {"levels": [4]},
             "engine": {"python": "cpu", "args": ARGS, "env": env}, "quality": QUALITY}
        )  # fmt: skip
        self.running, self.folder = running, folder
        self.config = EngineConfig.of(dict(ARGS), env=dict(env))
        self.memory = References()
        found = gate_for(spec, self.memory, self.config)
        assert found is not None
        self.gate: Gate = found

    async def with_hooks(self, name: str) -> Judged:
        """`Gate.check`, as a study calls it; the first call records the reference.

        Raises:
            SystemExit: the engine lacks a hook, or the gate did not get to the end.
        """
        begin, before = time.monotonic(), self._requests()
        report = await self.gate.check(self.running, self.config, self.folder)
        notes = {check.name: check.note for check in report.checks}
        if "exactly the baseline's tokens" not in notes.get("kl", "") or "replayed" not in notes.get("kl[decode]", ""):
            raise SystemExit(f"the hooks were not used: {notes}, see {self.running.log}")
        return self._judged(name, True, report.checks, before, begin)

    async def without(self, name: str) -> Judged:
        begin, before = time.monotonic(), self._requests()
        reference = Reference.from_json(next(iter(self.memory.values())))
        async with WithoutHooks(self.running.url, self.running.served_model, self.running.api_key) as scorer:
            limits = Limits.of(self.gate.spec.quality)
            checks = await candidate_checks(scorer, reference, self.gate.suite, limits)
        return self._judged(name, False, checks, before, begin)

    def _requests(self) -> int:
        """Requests that the engine has answered, by its own log."""
        assert self.running.log is not None
        return self.running.log.read_text("utf-8", "replace").count('"POST /')

    def _judged(self, name: str, hooks: bool, checks: Sequence[QualityCheck], before: int, begin: float) -> Judged:
        by_name = {check.name: check for check in checks}
        kl, decode = (by_name[key].estimate for key in ("kl", "kl[decode]"))
        found = Judged(
            name, hooks, verdict_of(checks).value, {check.name: check.verdict.value for check in checks},
            (kl.value, kl.low, kl.high), (decode.value, decode.low, decode.high), kl.n, decode.n,
            self._requests() - before, time.monotonic() - begin,
        )  # fmt: skip
        print(found, flush=True)
        return found


async def compare(triton: Path, folder: Path) -> list[Judged]:
    """Record, repeat, and judge each damage, with the hooks and without.

    Raises:
        SystemExit: the good weights do not pass.
    """
    cpu = ensure()
    env = environment(triton, folder / "backend")
    async with engine(cpu.model, folder / "engine-hooks", ARGS, env) as running:
        bench = Bench(running, env, cpu.model, folder)
        found = [await bench.with_hooks("none, recording"), await bench.with_hooks("none"), await bench.without("none")]
        if any(row.verdict != QualityVerdict.PASSED for row in found):
            raise SystemExit("the good weights do not pass")
        for kind, size in DAMAGES:
            copy = damaged_copy(cpu.python, cpu.model, folder, kind, size)
            await load_weights(running, copy)
            shutil.rmtree(copy)
            name = f"{kind} {size:g}"
            found += [await bench.with_hooks(name), await bench.without(name)]
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
