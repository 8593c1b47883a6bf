"""Measures any OpenAI-compatible server: levels, a ramp to its knee, the highest load that holds the SLOs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from autotune.errors import EnvironmentFault, SpecError
from autotune.load.client import LoadClient
from autotune.load.control import control_session, root_of, unreachable
from autotune.load.early import Progress
from autotune.load.enginewatch import metrics_of
from autotune.load.knee import Knee, Ramp, climb, find_capacity, holds, locate_knee
from autotune.load.measure import measure
from autotune.load.plan import levels_of
from autotune.load.report import Level, LevelReport, Target
from autotune.spec.study import LoadSpec, SloSpec

TIMEOUT = 20.0


@dataclass(frozen=True)
class BenchPlan:
    """What to measure.

    Attributes:
        load: the load; its levels are measured unless there is a ramp.
        slos: limits.
        ramp: climb these levels until throughput is flat, and find the knee.
        find_capacity: bisect for the highest level that holds the SLOs (between the ramp's ends, or the levels').
        seed: content of the prompts; another seed sends other prompts.
        limit: send only so many requests a level and wait for all.
        folder: for the request-level arrays.
    """

    load: LoadSpec
    slos: tuple[SloSpec, ...]
    ramp: Ramp | None
    find_capacity: bool
    seed: int
    limit: int | None
    folder: Path


@dataclass(frozen=True)
class BenchReport:
    """What a server gave, levels in ascending order."""

    url: str
    model: str
    levels: tuple[LevelReport, ...]
    knee: Knee | None = None
    capacity: Level | None = None
    """Highest level that holds the SLOs; None where it was not searched or none does."""
    slos: tuple[SloSpec, ...] = ()


async def first_model(target: Target) -> str:
    """The first model that the server lists; the target's own model is not looked at.

    Raises:
        EnvironmentFault: the server cannot be reached or lists none.
    """
    route = root_of(target) + "/v1/models"
    try:
        async with control_session(target, TIMEOUT) as session, session.get(route) as response:
            if response.status in (401, 403):
                raise EnvironmentFault(f"{route} wants an API key", hint="set OPENAI_API_KEY or use --api-key-env")
            body = await response.json(content_type=None)
    except aiohttp.InvalidURL:
        raise SpecError(f"{target.url!r} is no URL", hint="write http://127.0.0.1:8000") from None
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise unreachable(route, error, "Is the server up? Give its base URL.") from None
    models = body.get("data") if isinstance(body, dict) else None
    if not isinstance(models, list) or not models or not isinstance(models[0], dict):
        raise EnvironmentFault(f"{route} lists no models", hint="name one with --model")
    return str(models[0]["id"])


class _Stand:
    """Measures single levels and keeps every report."""

    def __init__(
        self, client: LoadClient, target: Target, plan: BenchPlan, on_progress: Callable[[Progress], None] | None
    ) -> None:
        self.client, self.target, self.plan, self.on_progress = client, target, plan, on_progress
        self.reports: dict[float, LevelReport] = {}
        self.reset = reset_of(target)

    async def __call__(self, level: Level) -> LevelReport:
        if level.value in self.reports:
            return self.reports[level.value]
        number = len(self.reports)
        report = await measure(
            self.target,
            self.plan.load.model_copy(update={"levels": [level.value]}),
            slos=self.plan.slos,
            trial_seed=self.plan.seed * 1000 + number,
            folder=self.plan.folder / f"{number:02d}",
            metrics=metrics_of(self.target),
            reset=self.reset,
            client=self.client,
            on_progress=self.on_progress,
            limit=self.plan.limit,
        )
        self.reports[level.value] = report.levels[0]
        return report.levels[0]


def reset_of(target: Target) -> Callable[[], Awaitable[bool]]:
    """Empties the prefix cache where the server has the route; False where not (prompts are fresh anyway)."""

    async def reset() -> bool:
        try:
            async with (
                control_session(target, TIMEOUT) as session,
                session.post(root_of(target) + "/reset_prefix_cache") as response,
            ):
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    return reset


def _ends(plan: BenchPlan, kind: str) -> tuple[Level, Level]:
    if plan.ramp is not None:
        levels = plan.ramp.levels(kind)
        return levels[0], levels[-1]
    levels = sorted(levels_of(plan.load), key=lambda level: level.value)
    return levels[0], levels[-1]


async def bench(
    target: Target, plan: BenchPlan, *, on_progress: Callable[[Progress], None] | None = None
) -> BenchReport:
    """Measure a running server as planned.

    Raises:
        EngineDied: the server went away.
        EnvironmentFault: it cannot be reached.
    """
    levels = levels_of(plan.load)
    kind = levels[0].kind
    async with LoadClient(plan.load.client_processes) as client:
        stand = _Stand(client, target, plan, on_progress)
        if plan.ramp is not None:
            await climb(stand, plan.ramp, kind)
        elif not plan.find_capacity:
            for level in levels:
                await stand(level)
        capacity = None
        if plan.find_capacity:
            low, high = _bracket(stand.reports, plan.slos, *_ends(plan, kind))
            capacity, _ = await find_capacity(stand, plan.slos, low, high)
    reports = tuple(report for _, report in sorted(stand.reports.items()))
    knee = locate_knee(reports) if plan.ramp is not None else None
    return BenchReport(target.url, target.model, reports, knee, capacity, plan.slos)


def _bracket(
    measured: dict[float, LevelReport], slos: Sequence[SloSpec], low: Level, high: Level
) -> tuple[Level, Level]:
    """Narrow the bracket to neighbours that a ramp has already measured."""
    for value in sorted(measured):
        level = Level(low.kind, value)
        if holds(measured[value], slos):
            low = level
        else:
            high = level
            break
    return (low, high) if low.value < high.value else (low, low)
