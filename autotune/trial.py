"""One trial, start to end: a proposal goes in, a record comes out. A bad configuration is a value, no exception."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from autotune.engine.failure_values import Action, Cause, Failure
from autotune.engine.keeper import EngineKeeper, Obtained
from autotune.engine.protocol import Phase, Resolved, RunningEngine, StartFailure
from autotune.engine.watchdog import ClientSide, wait_for_hang
from autotune.events import PLACED, Observer, StageStarted
from autotune.host.topology import link_warning
from autotune.load.measure import EngineDied, LoadClient, Progress, measure
from autotune.load.placement import place_load
from autotune.load.report import LevelReport, LoadReport, Target
from autotune.outcome import Broken, Infeasible, Measured, Outcome, Proposal, TrialRecord
from autotune.quality.report import QualityReport, QualityVerdict
from autotune.space.config import EngineConfig, FrozenValue
from autotune.space.headroom import AS_ASKED, Headroom, started_with
from autotune.space.layout import Layout
from autotune.spec.study import LoadSpec, StudySpec
from autotune.virtualtime import now, time_of_day


class Preflight(Protocol):
    """Refuses configurations that cannot work, before anything is started, and learns from every start."""

    def refuse(self, config: EngineConfig) -> Infeasible | None:
        """The reason why `config` cannot work, or None."""

    def learn(self, config: EngineConfig, engine: RunningEngine) -> None:
        """Calibrate with what a real start showed."""


class QualityGate(Protocol):
    """Compares an engine's answers with the reference."""

    async def check(self, engine: RunningEngine, config: EngineConfig, folder: Path) -> QualityReport:
        """The verdict on `config`, measured or taken from an earlier trial with the same precision."""

    async def check_finalist(self, engine: RunningEngine, config: EngineConfig, folder: Path) -> QualityReport:
        """The same with the study's tasks and command on top; the baseline is asked first."""

    def lone_culprit(self, config: EngineConfig) -> tuple[str, FrozenValue] | None:
        """The one value that can be blamed where `config` fails, or None where there are several."""


class Placement(Protocol):
    """Where a study's load stands when it is placed relative to the baseline's knee."""

    def get(self) -> LoadSpec | None:
        """The placed load, or None before the baseline was climbed."""

    def put(self, load: LoadSpec) -> None:
        """Keep it for all later trials and sessions."""


@dataclass(frozen=True)
class Bench:
    """Where trials run: everything that stays the same from one trial to the next."""

    spec: StudySpec
    keeper: EngineKeeper
    client: LoadClient
    preflight: Preflight
    gate: QualityGate | None
    placement: Placement
    folder: Path
    observer: Observer
    environment: tuple[tuple[str, str], ...] = ()
    vocabulary: int = 0
    gpus: int = 0
    """GPUs that a trial is charged for, used or idle; 0 on the CPU engine."""
    headroom: Headroom = AS_ASKED
    """How much wider than asked for engines are started, for live changes to come."""
    links: Mapping[int, str] = field(default_factory=dict)
    """The slowest link inside a tensor parallel group on the GPUs of this place, by its size."""


@dataclass
class _Progress:
    """What a trial has gathered so far; it survives an interruption."""

    seconds: dict[str, float] = field(default_factory=dict)
    phases: tuple[Phase, ...] = ()
    resolved: Resolved | None = None
    restarted: bool = False
    death: Failure | None = None

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        begin = now()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + now() - begin


async def run_trial(
    bench: Bench,
    proposal: Proposal,
    number: int,
    *,
    attempt: int = 1,
    fresh: bool = False,
    arrival_seed: int | None = None,
) -> TrialRecord:
    """Run one trial.

    Args:
        bench: where.
        proposal: what.
        number: the trial's number; it names its folder and seeds the content of its prompts.
        attempt: 1, or more for a repeated `Broken` trial.
        fresh: insist on a new engine process (confirmation).
        arrival_seed: other lengths and arrivals than the study's (confirmation).

    Returns:
        The record, whatever happened. Only cancellation and faults of our own leave as exceptions.
    """
    begin, started_at = now(), time_of_day()
    folder = bench.folder / f"trial-{number:04d}"
    progress = _Progress()
    if arrival_seed is not None:
        load = bench.spec.load.model_copy(update={"seed": arrival_seed})
        bench = replace(bench, spec=bench.spec.model_copy(update={"load": load}))
    outcome: Outcome | None = bench.preflight.refuse(proposal.config) if proposal.origin != "baseline" else None
    if outcome is None:
        folder.mkdir(parents=True, exist_ok=True)
        outcome = await _measure(bench, proposal, number, folder, progress, fresh=fresh)
    seconds = now() - begin
    unnamed = max(0.0, seconds - sum(progress.seconds.values()))
    progress.seconds["overhead"] = progress.seconds.get("overhead", 0.0) + unnamed
    return TrialRecord(
        number=number,
        proposal=proposal,
        outcome=outcome,
        started_at=started_at,
        seconds=seconds,
        gpus=bench.gpus,
        phases=progress.phases,
        resolved=progress.resolved,
        stage_seconds=tuple(progress.seconds.items()),
        attempt=attempt,
        restarted=progress.restarted,
        folder=folder if folder.exists() else None,
        environment=bench.environment,
    )


async def _measure(
    bench: Bench, proposal: Proposal, number: int, folder: Path, progress: _Progress, *, fresh: bool
) -> Outcome:
    """Start (or change) the engine, put the load on it, check its answers."""
    with progress.stage("start"):
        bench.observer.notify(StageStarted(number, "start"))
        obtained = await bench.keeper.obtain(
            proposal.config,
            folder=folder,
            fresh=fresh,
            room=_room(bench, proposal.config),
            on_phase=lambda name: bench.observer.notify(StageStarted(number, "start", name)),
        )
    if isinstance(obtained, StartFailure):
        progress.phases = obtained.phases
        progress.restarted = True
        return outcome_of(obtained.failure)
    engine = obtained.engine
    progress.restarted = obtained.restarted
    progress.resolved = with_link_warning(engine.resolved, proposal.config, bench.links)
    if obtained.restarted:
        progress.phases = engine.phases
        bench.preflight.learn(started_with(proposal.config, dict(engine.resolved.values)), engine)
    if engine.resolved.mismatches:
        return Broken("not_as_asked", "; ".join(engine.resolved.mismatches), retry=False)
    try:
        load = await _load(bench, engine, number, folder, progress)
        if load.invalid:
            return Broken("invalid_measurement", "; ".join(load.invalid))
        if all(level.stopped and not _served(level) for level in load.levels):
            return Infeasible("hopeless", "; ".join(f"{level.level}: {level.stopped}" for level in load.levels))
        quality = await _quality(bench, obtained, proposal, number, folder, progress)
    except EngineDied as death:
        return await _death(bench, engine, str(death), progress)
    failed = quality is not None and quality.verdict is QualityVerdict.FAILED
    culprit = bench.gate.lone_culprit(proposal.config) if bench.gate is not None and failed else None
    return Measured(load, quality, quarantine=(culprit,) if culprit else ())


def _room(bench: Bench, config: EngineConfig) -> EngineConfig | None:
    """What an engine for `config` is started with, or None where more than `config` cannot work."""
    wide = bench.headroom.widened(config)
    return wide if wide != config and bench.preflight.refuse(wide) is None else None


def with_link_warning(resolved: Resolved, config: EngineConfig, links: Mapping[int, str]) -> Resolved:
    """What an engine says of itself, and what the links between the GPUs of its place make slow."""
    warning = link_warning(Layout.of(config).tensor, links)
    return replace(resolved, warnings=(warning,)) if warning else resolved


def _served(level: LevelReport) -> bool:
    """Whether any request of the level was answered."""
    failed = level.estimate("error_share")
    return level.requests > 0 and bool(level.metrics) and (failed is None or failed.value < 1.0)


async def _load(bench: Bench, engine: RunningEngine, number: int, folder: Path, progress: _Progress) -> LoadReport:
    """Put the load on the engine while a watchdog looks for hangs."""

    latest = ClientSide()

    def seen(update: Progress, stage: str = "measure") -> None:
        nonlocal latest
        chunks = round(update.output_throughput * update.elapsed_s)
        latest = ClientSide(update.inflight, (update.index, update.phase, update.finished, chunks))
        bench.observer.notify(StageStarted(number, stage, str(update)))

    hang = asyncio.create_task(wait_for_hang(engine, bench.spec.engine.hang_timeout, client=lambda: latest))
    target = Target(engine.url, engine.served_model, engine.api_key, engine.time_scale, bench.vocabulary)
    try:
        with progress.stage("load"):
            spec = await _placed(bench, engine, target, number, folder, partial(seen, stage="knee"), hang)
            report = await measure(
                target,
                spec,
                slos=bench.spec.slos,
                objectives=bench.spec.objectives,
                trial_seed=number,
                folder=folder,
                metrics=engine.metrics,
                reset=engine.reset_caches,
                alive=lambda: _death_sentence(engine, hang),
                on_progress=seen,
                client=bench.client,
                gpus=bench.keeper.lease.gpus,
            )
    except EngineDied:
        progress.death = _failure_of(engine, hang)
        raise
    finally:
        hang.cancel()
    warmup = sum(level.warmup_s for level in report.levels) / engine.time_scale
    window = sum(level.window_s for level in report.levels) / engine.time_scale
    spent = progress.seconds.pop("load")
    progress.seconds |= {"warmup": warmup, "measure": window}
    progress.seconds["overhead"] = progress.seconds.get("overhead", 0.0) + max(0.0, spent - warmup - window)
    return report


async def _placed(
    bench: Bench,
    engine: RunningEngine,
    target: Target,
    number: int,
    folder: Path,
    seen: Callable[[Progress], None],
    hang: asyncio.Task[Failure],
) -> LoadSpec:
    """The load as it is put on every engine; the first engine, the baseline, is climbed to its knee where asked for."""
    load = bench.spec.load
    if load.knee is None:
        return load
    known = bench.placement.get()
    if known is not None:
        return known.model_copy(update={"seed": load.seed})
    bench.observer.notify(StageStarted(number, "knee"))
    placed = await place_load(
        target,
        load,
        trial_seed=number,
        folder=folder,
        client=bench.client,
        metrics=engine.metrics,
        reset=engine.reset_caches,
        alive=lambda: _death_sentence(engine, hang),
        on_progress=seen,
    )
    if placed.answered:  # else the measurement says what is wrong, and the next start is climbed again
        bench.placement.put(placed.load)
        bench.observer.notify(StageStarted(number, PLACED, str(placed)))
    return placed.load.model_copy(update={"seed": load.seed})


async def _quality(
    bench: Bench, obtained: Obtained, proposal: Proposal, number: int, folder: Path, progress: _Progress
) -> QualityReport | None:
    if bench.gate is None:
        return None
    with progress.stage("quality"):
        bench.observer.notify(StageStarted(number, "quality"))
        ask = bench.gate.check_finalist if proposal.origin == "confirm" else bench.gate.check
        return await ask(obtained.engine, proposal.config, folder)


def _failure_of(engine: RunningEngine, hang: asyncio.Task[Failure]) -> Failure | None:
    """Why the engine is dead or hangs, as far as that is known."""
    if hang.done() and not hang.cancelled() and hang.exception() is None:
        return engine.failure() or hang.result()
    return engine.failure()


def _death_sentence(engine: RunningEngine, hang: asyncio.Task[Failure]) -> str | None:
    failure = _failure_of(engine, hang)
    return failure.reason if failure is not None else None


async def _death(bench: Bench, engine: RunningEngine, sentence: str, progress: _Progress) -> Outcome:
    """The engine died or hung under load: let its log speak, then make sure that nothing of it is left."""
    failure = engine.failure() or progress.death
    for _ in range(20):
        if failure is not None:
            break
        await asyncio.sleep(0.1)  # the log's last lines may still be on their way
        failure = engine.failure()
    await bench.keeper.release()
    return outcome_of(failure) if failure is not None else Broken("engine_died", sentence)


def outcome_of(failure: Failure) -> Outcome:
    """What follows from a classified failure."""
    reason = failure.reason
    if failure.cause is Cause.CONFIG:
        quarantine = failure.quarantine if failure.action is Action.QUARANTINE_VALUE else ()
        return Infeasible(failure.failure_class, reason, quarantine=quarantine, advice=failure.advice)
    return Broken(
        failure.failure_class,
        reason,
        retry=failure.action in (Action.RETRY_ONCE, Action.STOP_IF_REPEATS),
        stop=failure.action is Action.STOP,
        attempts=2,
        machine=failure.action is Action.STOP_IF_REPEATS,
    )
