"""Places a study's load relative to the baseline's saturation knee (`load: {knee: 0.9}`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from autotune.load.client import LoadClient
from autotune.load.early import Progress
from autotune.load.knee import Knee, Ramp, climb, load_at_knee, locate_knee
from autotune.load.measure import measure
from autotune.load.report import Level, LevelReport, Target
from autotune.spec.study import LoadSpec

RAMPS = {"closed": Ramp(4, 512, 2.0), "open": Ramp(0.25, 256, 2.0)}
"""Levels that are climbed until throughput is flat: concurrencies, or rates in requests a second."""


async def place_load(
    target: Target,
    load: LoadSpec,
    *,
    trial_seed: int,
    folder: Path,
    client: LoadClient,
    metrics: Callable[[], Awaitable[dict[str, float]]] | None = None,
    reset: Callable[[], Awaitable[bool]] | None = None,
    alive: Callable[[], str | None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    ramp: Ramp | None = None,
) -> tuple[LoadSpec, Knee | None, list[LevelReport]]:
    """Climb on the running baseline, find its knee and place the load there.

    Args:
        target: the baseline.
        load: the load with `knee` set.
        ramp: other levels than `RAMPS`.
        trial_seed, folder, client, metrics, reset, alive, on_progress: as in `measure`.

    Returns:
        The load with its level set, the knee, and the measured curve. Without a knee (fewer than three levels could be
        measured) the load stands at the best measured level.

    Raises:
        EngineDied: the baseline ended under load.
        EnvironmentFault: a client process failed or the server cannot be reached.
    """
    kind = "closed" if load.arrivals == "closed" else "open"

    async def at(level: Level) -> LevelReport:
        report = await measure(
            target,
            load.model_copy(update={"levels": [level.value], "knee": None, "stop_hopeless": False}),
            trial_seed=trial_seed,
            folder=folder / f"knee-{level.value:g}",
            metrics=metrics,
            reset=reset,
            alive=alive,
            on_progress=on_progress,
            client=client,
        )
        return report.levels[0]

    reports = await climb(at, ramp or RAMPS[kind], kind)
    knee = locate_knee(reports)
    level = knee.level if knee is not None else max(reports, key=_throughput).level
    return load_at_knee(load, level), knee, reports


def _throughput(report: LevelReport) -> float:
    found = report.estimate("output_throughput")
    return found.value if found is not None else 0.0
