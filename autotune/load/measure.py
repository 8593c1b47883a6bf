"""Measures a running engine: every level of the load, one after the other, on fresh content."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from autotune.load.agreement import check_profile, host_bound
from autotune.load.alphabet import find_alphabet
from autotune.load.client import LoadClient
from autotune.load.early import HopelessRule, Progress
from autotune.load.enginewatch import EngineWatch
from autotune.load.level import EngineDied, LevelResult, LevelRun, Watchers
from autotune.load.metrics import PERCENTILES, summarise
from autotune.load.plan import levels_of, plan_hash, planned_turns
from autotune.load.report import Estimate, Level, LevelReport, LoadReport, Target
from autotune.load.telemetry import GpuSampler, GpuWatch, NvmlSampler
from autotune.load.turns import Turn
from autotune.load.validity import check_engine, check_window, required_requests
from autotune.load.workload import Alphabet, RequestMaker
from autotune.spec.study import LoadSpec, ObjectiveSpec, SloSpec
from autotune.virtualtime import now

__all__ = ["EngineDied", "LoadClient", "Progress", "levels_of", "measure"]

NOT_STEADY = "the warm-up ended before two waves agreed"
UNSTEADY = ("bursts", "ramps", "trace")
"""Arrivals whose requests in flight are not meant to settle."""
ERRORS_TOLD = 3
"""Different errors of a level that are told in words."""
IDLE_TIMEOUT = 10.0
"""Real seconds to wait between levels until the server has dropped the cancelled requests."""


@dataclass(frozen=True)
class _Session:
    """What all levels of one call share."""

    client: LoadClient
    target: Target
    load: LoadSpec
    alphabet: Alphabet
    trial_seed: int
    folder: Path
    metrics: Callable[[], Awaitable[dict[str, float]]] | None
    watchers: Watchers
    objectives: Sequence[ObjectiveSpec]
    limit: int | None
    sampler: GpuSampler

    def plan(self, level: Level, number: int) -> Iterator[Turn]:
        """The requests of a level."""
        return islice(planned_turns(self.load, level, number), self.limit)


async def measure(
    target: Target,
    load: LoadSpec,
    *,
    slos: Sequence[SloSpec] = (),
    objectives: Sequence[ObjectiveSpec] = (),
    trial_seed: int,
    folder: Path,
    metrics: Callable[[], Awaitable[dict[str, float]]] | None = None,
    reset: Callable[[], Awaitable[bool]] | None = None,
    alive: Callable[[], str | None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    hopeless: HopelessRule | None = None,
    client: LoadClient | None = None,
    limit: int | None = None,
    gpus: Sequence[int] = (),
    sampler: GpuSampler | None = None,
) -> LoadReport:
    """Measure every level of `load` on a running engine.

    Args:
        target: the server. Its `time_scale` turns measured seconds into the target's: all times in `load` and in the
            report are the target's.
        load: the load; lengths and arrival times depend on it alone.
        slos: limits, for goodput, for the needed number of requests and for the early stop.
        objectives: what will be optimised, for the needed number of requests.
        trial_seed: makes the content of this trial fresh.
        folder: where the request-level arrays go (`level-N.npz`).
        metrics: reads the server's counters.
        reset: empties the server's prefix cache between levels.
        alive: a sentence when the engine has died, else None.
        on_progress: told several times a second.
        hopeless: a sentence when the level cannot matter any more, else None.
        client: running client processes; without one they are started for this call.
        limit: send only so many requests a level and wait for all of them (other tools' way; the end is a drain).
        gpus: NVML indices of the engine's GPUs, for power, utilisation and clocks over the window.
        sampler: reads the GPUs instead of NVML.

    Raises:
        EngineDied: the engine ended under load or cannot be reached any more.
        EnvironmentFault: a client process failed or the server cannot be reached.
        SpecError: the load cannot be made (a file is missing, a percentile is not measured).
    """
    folder.mkdir(parents=True, exist_ok=True)
    levels = levels_of(load)
    async with AsyncExitStack() as stack:
        if client is None:
            client = await stack.enter_async_context(LoadClient(load.client_processes))
        sampler = sampler if sampler is not None else NvmlSampler(gpus)
        stack.callback(sampler.close)
        session = _Session(
            client, target, load, await find_alphabet(target, load), trial_seed, folder, metrics,
            Watchers(alive, on_progress, hopeless, tuple(slos)), objectives, limit, sampler,
        )  # fmt: skip
        reports: list[LevelReport] = []
        for number, level in enumerate(levels):
            if number:
                await _settle(metrics, alive)
            if reset is not None:
                await reset()
            reports.append(await _measure_level(session, level, number, len(levels)))
    return LoadReport(tuple(reports))


async def _settle(
    metrics: Callable[[], Awaitable[dict[str, float]]] | None, alive: Callable[[], str | None] | None
) -> None:
    """Wait until the server runs nothing any more (a cache in use cannot be emptied)."""
    if metrics is None:
        return
    deadline = now() + IDLE_TIMEOUT
    while now() < deadline:
        values: dict[str, float] = {}
        with contextlib.suppress(OSError, TimeoutError):
            values = await metrics()
        busy = [value for name, value in values.items() if name.endswith(("requests_running", "requests_waiting"))]
        if not any(busy):
            return
        if alive is not None and (reason := alive()):
            raise EngineDied(reason)
        await asyncio.sleep(0.1)


async def _measure_level(session: _Session, level: Level, number: int, of: int) -> LevelReport:
    load, target, slos = session.load, session.target, session.watchers.slos
    maker = RequestMaker(target, load, session.alphabet, [session.trial_seed, number])
    watch = EngineWatch(session.metrics, GpuWatch(session.sampler))
    run = LevelRun(
        session.client, target, load, level, session.plan(level, number), maker, watch, session.watchers,
        (number, of), drain=session.limit is not None,
        required=0 if session.limit is not None else required_requests(slos, session.objectives),
    )  # fmt: skip
    result = await run.run()
    samples = session.folder / f"level-{number}.npz"
    return await asyncio.to_thread(_report, session, level, number, maker, watch, result, samples)


def _report(
    session: _Session,
    level: Level,
    number: int,
    maker: RequestMaker,
    watch: EngineWatch,
    result: LevelResult,
    samples: Path,
) -> LevelReport:
    records, window, load, target = result.records, result.window, session.load, session.target
    slos = session.watchers.slos
    records.save(samples)
    empty = window.seconds <= 0
    percentiles = sorted({*PERCENTILES, *(float(item.percentile) for item in slos)})
    figures = {} if empty else summarise(records, window, slos, percentiles=percentiles)
    invalid = check_window(
        records, window, load, scale=target.time_scale, planned_inputs=maker.prompt_lengths if maker.exact else (),
        finite=result.finite, stopped=result.stopped is not None, slos=slos, objectives=session.objectives,
    )  # fmt: skip
    if result.stopped is None:
        invalid += check_engine(
            records, watch, load, start=result.began, scale=target.time_scale, expected_hits=maker.expected_hits
        )
    profile = check_profile(
        records, window, watch, load, level, start=result.began, scale=target.time_scale, finite=result.finite
    )
    if result.stopped is None:
        invalid += profile.invalid
    gpu = watch.gpus.figures() if watch.gpus is not None else {}
    if "output_throughput" in figures and gpu.get("gpu_power_watts", 0.0) > 0:
        watts, rate = gpu["gpu_power_watts"], figures["output_throughput"]
        figures["tokens_per_joule"] = Estimate(rate.value / watts, rate.low / watts, rate.high / watts, rate.n)
    engine = (
        watch.figures()
        | gpu
        | {
            "warmup_steady": float(result.steady),
            "client_cpu_share": records.cpu_share,
        }
    )
    ends = records.column("end")
    waited = host_bound(level, engine)
    return LevelReport(
        level=level,
        metrics=tuple(figures.items()),
        invalid=tuple(invalid),
        stopped=result.stopped,
        requests=int((records.ok & window.holds(records.column("last"))).sum()),
        errors=int((records.failed & window.holds(ends)).sum()),
        window_s=window.seconds,
        warmup_s=window.start,
        engine=tuple(sorted(engine.items())),
        content_hash=maker.content_hash,
        plan_hash=plan_hash(load, level, session.plan(level, number)),
        samples=samples,
        notes=(*profile.notes, *((waited,) if waited else ()), *_notes(result, load)),
    )


def _notes(result: LevelResult, load: LoadSpec) -> list[str]:
    """What was wrong with single requests, and with the warm-up."""
    records = result.records
    failures = records.failures(result.window.holds(records.column("end")))
    found = []
    if failures and result.stopped is None:
        each = "; ".join(f"{number} x {text}" for number, text in failures[:ERRORS_TOLD])
        more = sum(number for number, _ in failures[ERRORS_TOLD:])
        found.append(f"failed requests: {each}" + (f"; {more} others" if more else ""))
    if not result.steady and load.arrivals not in UNSTEADY:
        found.append(NOT_STEADY)
    return found
