"""A study on a synthetic surface: real spec, space, proposer, rules and store; trials that only take virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from autotune.assembly import StudyParts, assemble
from autotune.events import Observer, Silent
from autotune.executor import TrialTask
from autotune.load.report import Estimate, Level, LevelReport, LoadReport
from autotune.outcome import Infeasible, Measured, Outcome, Proposal, TrialRecord
from autotune.result import StudyResult
from autotune.run import StudyRun
from autotune.space.config import FrozenValue
from autotune.study import open_study

START_S, COMPILE_S, MEASURE_S = 75.0, 45.0, 40.0
"""A start, a compilation and a measurement on one H200 (docs/evidence)."""
NOISE = 0.012
STUDY = """\
name: scale
model: llama-3.1-8b
engine: {kind: simulated, simulate: {card: h100}}
hardware: {gpus: 1}
space: h100-dense
load: {input_tokens: 1024, output_tokens: 128, levels: [64]}
objectives:
  - metric: output_throughput
  - {metric: ttft, percentile: 95}
quality: {enabled: false}
search: {trials: 30, sentinel_every: 0}
confirm: {rounds: 0}
"""
ENVIRONMENT = tuple((name, "none") for name in ("card", "driver", "vllm", "cpu", "host"))
PERCENTILES = (50, 75, 90, 95, 99)


class SurfaceExecutor:
    """Answers from a surface over the settings of the space. See `autotune.executor.Executor`.

    Every setting has a main effect, every pair an interaction, both drawn from `seed`; some corners run out of memory.
    A place that keeps its restart key changes live settings without a start, as a real engine does.
    """

    def __init__(self, parts: StudyParts, seed: int, folder: Path) -> None:
        self._parameters = parts.space.parameters
        self._seed = seed
        self._folder = folder
        rng = np.random.default_rng([seed, 1])
        count = len(self._parameters)
        self._main = rng.normal(0, 0.16, (count, 24))
        self._pairs = rng.normal(0, 0.05, (count, count, 24, 24))
        self._latency = rng.normal(0, 0.12, (count, 24))
        self._trade = rng.uniform(0.2, 0.8)
        self._compiled: set[str] = set()
        self._last: dict[int, str] = {}

    async def open(self, places: int) -> None:
        """See `Executor.open`."""

    async def room(self) -> None:
        """See `Executor.room`."""

    async def run(self, place: int, task: TrialTask) -> TrialRecord:
        """See `Executor.run`."""
        config = task.proposal.config
        key = str(
            sorted(config.split(frozenset({"max_num_seqs", "max_num_batched_tokens"}))[0].to_dict().items(), key=str)
        )
        restarted = task.fresh or self._last.get(place) != key
        start = START_S + (0.0 if key in self._compiled else COMPILE_S) if restarted else 2.0
        self._compiled.add(key)
        rng = np.random.default_rng([self._seed, task.number, 2])
        outcome = self.outcome(dict(task.proposal.point), rng)
        self._last[place] = key if isinstance(outcome, Measured) else ""
        measure = MEASURE_S if isinstance(outcome, Measured) else 0.0
        seconds = float((start + measure) * rng.uniform(0.95, 1.05))
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(seconds)
        return TrialRecord(
            task.number, task.proposal, outcome, began, seconds, 1,
            stage_seconds=(("start", start), ("measure", measure)),
            attempt=task.attempt, restarted=restarted, place=place, folder=self._folder / f"trial-{task.number:04d}",
            environment=ENVIRONMENT,
        )  # fmt: skip

    def outcome(self, point: Mapping[str, FrozenValue], rng: np.random.Generator | None) -> Outcome:
        """What a point measures; the noise comes from `rng`, None for none."""
        values = [(parameter.values, point.get(parameter.name)) for parameter in self._parameters]
        steps = [legal.index(value) if value in legal else 0 for legal, value in values]
        effect = sum(self._main[index, step] for index, step in enumerate(steps))
        effect += sum(
            self._pairs[a, b, steps[a], steps[b]] for a in range(len(steps)) for b in range(a + 1, len(steps))
        )
        if effect > 1.4 and (steps[0] + steps[-1]) % 3 == 0:
            return Infeasible("oom_serving", "out of memory on the surface")
        latency = sum(self._latency[index, step] for index, step in enumerate(steps)) + self._trade * effect
        noise = rng.normal(0, NOISE, 2) if rng is not None else (0.0, 0.0)
        throughput, ttft = 4000 * float(np.exp(effect + noise[0])), 300 * float(np.exp(latency + noise[1]))
        return Measured(LoadReport((level_report(throughput, ttft),)))

    async def rest(self) -> None:
        """See `Executor.rest`."""

    async def close(self) -> None:
        """See `Executor.close`."""


def level_report(throughput: float, ttft: float) -> LevelReport:
    """As many figures as a real level has: records and database grow with them."""
    metrics = [("output_throughput", throughput), ("total_throughput", 9 * throughput), ("request_throughput", 31.0)]
    metrics += [(f"{name}_p{q}_ms", ttft * q / 95) for name in ("ttft", "tpot", "itl", "e2e") for q in PERCENTILES]
    figures = tuple((key, Estimate(value, value * 0.98, value * 1.02, 400)) for key, value in metrics)
    engine = tuple((f"engine_figure_{index}", 0.5) for index in range(18))
    return LevelReport(
        Level("closed", 64.0), figures, requests=400, window_s=20, warmup_s=6, engine=engine,
        content_hash="0" * 12, plan_hash="0" * 12,
    )  # fmt: skip


@dataclass(frozen=True)
class Played:
    """A study that was played, and its executor."""

    result: StudyResult
    executor: SurfaceExecutor
    parts: StudyParts


async def play(
    folder: Path,
    *,
    gpus: int,
    trials: int,
    seed: int,
    proposer: str,
    settings: tuple[str, ...] = (),
    observer: Observer | None = None,
) -> Played:
    """Run a study of so many trials on so many places."""
    parts = await _parts(folder, gpus, trials, seed, proposer, settings)
    try:
        executor = SurfaceExecutor(parts, seed, folder)
        result = await StudyRun(parts, parts.store, observer or Silent(), executor).run()
        return Played(result, executor, parts)
    finally:
        parts.store.close()


async def fill(folder: Path, count: int, *, gpus: int, seed: int) -> None:
    """Put so many random trials of the same study into its database, as if they had been run before."""
    parts = await _parts(folder, gpus, count, seed, "random", ())
    executor = SurfaceExecutor(parts, seed, folder)
    rng, seen = random.Random(seed), set[str]()
    base = parts.baseline
    while len(seen) < count:
        point = parts.space.canonical({one.name: rng.choice(one.values) for one in parts.space.parameters})
        config = base if not seen else parts.space.config(point, base)
        if config.hash in seen or parts.space.violations(point):
            continue
        number = len(seen)
        seen.add(config.hash)
        proposal = Proposal(config, tuple(sorted(point.items())), "sampler" if number else "baseline")
        outcome = executor.outcome(point, np.random.default_rng([seed, number, 2]))
        if number == 0:
            outcome = Measured(LoadReport((level_report(4000.0, 300.0),)))
        parts.store.begin(number, 1, proposal)
        parts.store.add(
            TrialRecord(
                number, proposal, outcome, 0.0, 120.0, 1, stage_seconds=(("start", 80.0), ("measure", 40.0)),
                place=number % gpus, folder=folder / f"trial-{number:04d}", environment=ENVIRONMENT,
            )
        )  # fmt: skip
    parts.store.close()


async def _parts(
    folder: Path, gpus: int, trials: int, seed: int, proposer: str, settings: tuple[str, ...]
) -> StudyParts:
    path = folder / "scale.yaml"
    path.write_text(STUDY)
    wanted = [
        f"hardware.gpus={gpus}", f"hardware.parallel_trials={gpus}", "hardware.neighbour_check=false",
        f"search.trials={trials}", f"search.seed={seed}", f"search.proposer={proposer}", *settings,
    ]  # fmt: skip
    return replace(await assemble(open_study(path, wanted)), trial_gpus=1)
