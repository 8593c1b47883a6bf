"""Places a study's load relative to the baseline's saturation knee (`load: {knee: 0.9}`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.load.client import LoadClient
from autotune.load.early import Progress
from autotune.load.knee import Knee, Ramp, climb, load_at_knee, locate_knee
from autotune.load.measure import measure
from autotune.load.report import Level, LevelReport, Target
from autotune.spec.study import LoadSpec

RAMPS = {"closed": Ramp(4, 512, 2.0), "open": Ramp(0.25, 256, 2.0)}
"""Levels that are climbed until throughput is flat: concurrencies, or rates in requests a second."""


@dataclass(frozen=True)
class Placed:
    """Where a study's load stands.

    Attributes:
        load: the load with its level set, and no `knee` any more.
        knee: the baseline's; None where fewer than three levels could be measured.
        reports: the curve, by rising level.
    """

    load: LoadSpec
    knee: Knee | None
    reports: tuple[LevelReport, ...]

    @property
    def answered(self) -> bool:
        """The baseline answered at one level at least; else nothing is known about its knee."""
        return any(_throughput(report) > 0 for report in self.reports)

    def __str__(self) -> str:
        kind = self.reports[0].level.kind
        stands = Level(kind, self.load.levels[0])
        if self.knee is None:
            return f"no knee in {len(self.reports)} levels; the load stands at {stands}"
        beyond = "" if self.knee.saturated else ", and may lie higher: it was not saturated there"
        return f"the load stands at {stands}; the baseline's knee is at {self.knee.level}{beyond}"


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
) -> Placed:
    """Climb on the running baseline, find its knee and place the load there.

    Args:
        target: the baseline.
        load: the load with `knee` set.
        ramp: other levels than `RAMPS`.
        trial_seed, folder, client, metrics, reset, alive, on_progress: as in `measure`.

    Returns:
        The load with its level set. Without a knee (fewer than three levels could be measured) it stands at that share
        of the best measured level.

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

    return place_on(load, await climb(at, ramp or RAMPS[kind], kind))


def place_on(load: LoadSpec, reports: Sequence[LevelReport]) -> Placed:
    """Place a load on a measured curve, see `place_load`."""
    knee = locate_knee(reports)
    level = knee.level if knee is not None else max(reports, key=_throughput).level
    return Placed(load_at_knee(load, level), knee, tuple(reports))


def _throughput(report: LevelReport) -> float:
    found = report.estimate("output_throughput")
    return found.value if found is not None else 0.0
