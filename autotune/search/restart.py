"""What a proposal costs: a new process, a new compilation, or only a changed setting on a running engine."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.outcome import Broken, Infeasible, Measured, TrialRecord
from autotune.search.objectives import TAKEN_OVER
from autotune.search.screen import Key, Point
from autotune.space.config import EngineConfig, FrozenValue
from autotune.space.defaults import lowers
from autotune.space.headroom import started_with

if TYPE_CHECKING:
    from autotune.search.proposer import Setting

NEW_COMPILE = 1.25
"""A start that takes so much longer than the quickest ones is taken for one that compiled."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of the parts of a trial.

    Attributes:
        start: a new process whose kernels are compiled already.
        compile: what a compilation adds.
        live: changing settings on a running engine.
        measure: warm-up, all load levels and the quality gate.
    """

    start: float = 75.0
    compile: float = 45.0
    live: float = 2.0
    measure: float = 40.0

    @classmethod
    def learnt(cls, history: Sequence[TrialRecord], prior: CostModel) -> CostModel:
        """The prior, with medians of what was seen in its place."""
        done = [record for record in history if isinstance(record.outcome, Measured)]
        starts = [seconds for record in done if record.restarted and (seconds := stage(record, "start")) > 0]
        lives = [seconds for record in done if not record.restarted and (seconds := stage(record, "start")) > 0]
        measured = [seconds for record in done if (seconds := _measuring(record)) > 0]
        quick = min(starts, default=prior.start)
        warm = [seconds for seconds in starts if seconds <= NEW_COMPILE * quick]
        cold = [seconds for seconds in starts if seconds > NEW_COMPILE * quick]
        start = statistics.median(warm) if warm else prior.start
        return cls(
            start=start,
            compile=statistics.median(cold) - start if cold else (prior.compile if len(starts) < 2 else 0.0),
            live=statistics.median(lives) if lives else prior.live,
            measure=statistics.median(measured) if measured else prior.measure,
        )


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """The engine that the latest measured trial left behind.

    Attributes:
        started: the configuration of its start; live settings cannot exceed it.
        chosen: what the engine says it runs with, for settings that its start left open or was given more of.
    """

    started: EngineConfig
    chosen: tuple[tuple[str, FrozenValue], ...] = ()

    def reaches(self, config: EngineConfig, live: Collection[str]) -> bool:
        """`config` is a live change away: same restart key, no live setting above what the engine started with."""
        if not live or self.started.restart_key(live) != config.restart_key(live):
            return False
        before, after = self.started.split(live)[1], config.split(live)[1]
        limits = {**dict(self.chosen), **before, **self.room}
        return before.keys() <= after.keys() and all(
            name in limits and lowers(name, value, limits[name]) for name, value in after.items()
        )

    @property
    def room(self) -> dict[str, FrozenValue]:
        """Limits that it was started with above those of its configuration (see `space.headroom`)."""
        wide = started_with(self.started, dict(self.chosen))
        return {change.name: change.after for change in wide.changes_from(self.started)}


class PointCosts:
    """Costs of points at one moment of a study, without making a configuration of each."""

    def __init__(self, setting: Setting, history: Sequence[TrialRecord], place: int = 0) -> None:
        self._screen, self._live, self._headroom = setting.screen, setting.live, setting.headroom
        layouts = (one.name for one in setting.screen.space.parameters if one.kind == "layout")
        self._compiles = frozenset([*setting.compiles, *layouts]) if setting.compiles else None
        self._model = CostModel.learnt(history, setting.costs)
        running = running_engine([one for one in history if one.place == place]) if setting.live else None
        self._running = self._limits(running) if running is not None else None
        started = (record for record in history if not isinstance(record.outcome, Broken))
        points = (record.proposal.point or self._locate(record.config) for record in started)
        keys = [point for point in points if point is not None]
        self._compiled = frozenset(self._compilation(key) for key in keys)
        group = self._group(self._running) if self._running is not None else None
        self._members = [dict(key) for key in keys if self._group(key) == group]

    def kind(self, key: Key) -> str:
        """`live change`, `new process` or `new process and compilation`."""
        if self._running is not None and self._reaches(self._running, key):
            return "live change"
        return "new process" if self._compilation(key) in self._compiled else "new process and compilation"

    def seconds(self, key: Key, chance: float = 1.0) -> float:
        """Expected seconds of a trial; a configuration that fails at its start (1 - `chance`) is not measured."""
        kind = self.kind(key)
        if kind == "live change":
            return self._model.live + self._model.measure
        start = self._model.start + (self._model.compile if kind == "new process and compilation" else 0.0)
        return start + chance * self._model.measure

    def siblings(self, rng: random.Random, count: int) -> list[Point]:
        """What the running engine can become without a restart; a random choice where that is much."""
        if self._running is None:
            return []
        point, space = dict(self._running), self._screen.space
        names = [name for name in point if name in self._live and space.by_name[name].ordered]
        axes = [_up_to(name, space.by_name[name].values, point[name]) for name in names]
        if not names:
            return []
        combinations = list(itertools.islice(itertools.product(*axes), 4096))
        chosen = combinations if len(combinations) <= count else rng.sample(combinations, count)
        return [{**point, **dict(zip(names, values, strict=True))} for values in chosen]

    def ends(self, keys: Sequence[Key]) -> list[Point]:
        """The first of these that the running engine can become, with one live setting at its lowest at a time."""
        beside = next((key for key in keys if self._running is not None and self._reaches(self._running, key)), ())
        space, found = self._screen.space, []
        for name, value in beside:
            if name in self._live and space.by_name[name].ordered:
                lowest = _up_to(name, space.by_name[name].values, value)[0]
                found.append({**dict(beside), name: lowest})
        return found

    def leaps(self, key: Key) -> bool:
        """Whether it is a live change of several settings at once, seen from all that its engine was measured with.

        A bad outcome of such a change would not tell which of them it was.
        """
        if not self._members or self._running is None or not self._reaches(self._running, key):
            return False
        live = [item for item in key if item[0] in self._live]
        return all(sum(one.get(name) != value for name, value in live) > 1 for one in self._members)

    def first_of(self, keys: Sequence[Key]) -> int:
        """Which of several points comes next when all are going to be measured; the first one where it is all the same.

        What the running engine can become now does: later it would take a start. Else the first point waits for the
        one from which it is a live change away.
        """
        chosen = 0
        for index, key in enumerate(keys):
            if self.kind(key) == "live change":
                return index
            if self._live and key != keys[chosen] and self._reaches(self._started(key), keys[chosen]):
                chosen = index
        return chosen

    def _reaches(self, started: Key, key: Key) -> bool:
        if self._group(key) != self._group(started):
            return False
        limits = dict(started)
        return all(name in limits and lowers(name, value, limits[name]) for name, value in key if name in self._live)

    def _started(self, key: Key) -> Key:
        """What an engine is going to be started with for a point."""
        return tuple((name, self._headroom.value(name, value) if name in self._live else value) for name, value in key)

    def _group(self, key: Key) -> Key:
        return tuple(item for item in key if item[0] not in self._live)

    def _compilation(self, key: Key) -> Key:
        """What decides whether compiled kernels can be used again; without knowledge, the whole restart group."""
        if self._compiles is None:
            return self._group(key)
        return tuple(item for item in self._started(key) if item[0] in self._compiles)

    def _limits(self, running: RunningEngine) -> Key | None:
        """The running engine's place in the space; live settings that its start left open are those that it chose."""
        key = self._locate(running.started)
        given, chosen = dict(running.started.args), dict(running.chosen)
        limits = {name: chosen[name] for name in self._live if name not in given and name in chosen} | running.room
        return tuple((name, limits.get(name, value)) for name, value in key) if key else None

    def _locate(self, config: EngineConfig) -> Key | None:
        point = self._screen.space.point_of(config)
        return self._screen.key(point) if point is not None else None


def _up_to(name: str, values: Sequence[FrozenValue], limit: FrozenValue) -> Sequence[FrozenValue]:
    return [value for value in values if lowers(name, value, limit)]


@dataclass(frozen=True, slots=True)
class Efficiency:
    """How well a study used its GPUs.

    Attributes:
        configurations_per_gpu_hour: measured configurations.
        points_per_gpu_hour: measured load levels.
        measuring_share: share of GPU time in warm-up and measured windows.
        gpu_hours: GPU time of all trials.
        restarts: engine starts.
        live_changes: trials on an engine that was already running.
    """

    configurations_per_gpu_hour: float
    points_per_gpu_hour: float
    measuring_share: float
    gpu_hours: float
    restarts: int
    live_changes: int


def efficiency(history: Sequence[TrialRecord]) -> Efficiency:
    """Points per GPU hour and share of time measuring. A trial without GPUs counts as one device.

    What an earlier study measured is not of this one.
    """
    history = [record for record in history if record.proposal.origin != TAKEN_OVER]
    hours = sum(record.seconds * max(record.gpus, 1) for record in history) / 3600
    measuring = sum((stage(one, "warmup") + stage(one, "measure")) * max(one.gpus, 1) for one in history) / 3600
    loads = [record.outcome.load for record in history if isinstance(record.outcome, Measured)]
    points = sum(1 for load in loads for level in load.levels if not level.invalid)
    ran = [record for record in history if not (isinstance(record.outcome, Infeasible) and not record.outcome.started)]
    return Efficiency(
        configurations_per_gpu_hour=len(loads) / hours if hours > 0 else 0.0,
        points_per_gpu_hour=points / hours if hours > 0 else 0.0,
        measuring_share=measuring / hours if hours > 0 else 0.0,
        gpu_hours=hours,
        restarts=sum(record.restarted for record in ran),
        live_changes=sum(not record.restarted for record in ran),
    )


def stage(record: TrialRecord, name: str) -> float:
    """Seconds that a record spent in a stage."""
    return dict(record.stage_seconds).get(name, 0.0)


def running_engine(history: Sequence[TrialRecord]) -> RunningEngine | None:
    """The engine that can still be running after the last record: the latest start, if nothing has failed since."""
    started: TrialRecord | None = None
    for record in history:
        if isinstance(record.outcome, Infeasible) and not record.outcome.started:
            continue
        if not isinstance(record.outcome, Measured):
            started = None
        elif record.restarted:
            started = record
    if started is None:
        return None
    return RunningEngine(started.config, started.resolved.values if started.resolved is not None else ())


def _measuring(record: TrialRecord) -> float:
    return stage(record, "warmup") + stage(record, "measure") + stage(record, "quality")
