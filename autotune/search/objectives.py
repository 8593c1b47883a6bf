"""What a record is worth: objective values and constraints, always in the same order."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from autotune.load.area import area_of
from autotune.load.report import LevelReport
from autotune.outcome import Infeasible, Measured, TrialRecord
from autotune.quality.report import QualityReport, QualityVerdict
from autotune.spec.study import ObjectiveSpec, SloSpec, StudySpec

Direction: TypeAlias = Literal["maximize", "minimize"]
LATENCIES = frozenset({"ttft", "tpot", "itl", "e2e"})
REPEATS = frozenset({"sentinel", "alone", "beside", "confirm", "minimise"})
"""Origins of measurements that repeat a known configuration: they prove or watch, they do not search."""
TAKEN_OVER = "warm"
"""Origin of measurements of an earlier study: they steer the search, use up no budget, and are in no claim."""
CLEAR_VIOLATION = 0.05
"""A failed gate is told as at least this far from passing, so that noise at the limit cannot hide it."""


@dataclass(frozen=True, slots=True)
class Objective:
    """One objective.

    Attributes:
        key: metric key of a level report, such as `ttft_p95_ms`; `capacity` is computed here.
        maximize: more is better.
        level: a level's value, `first`, `last`, `best`, or `area` for the mean over all levels.
        per_gpu: divided by the GPUs of the trial.
    """

    key: str
    maximize: bool
    level: float | str
    per_gpu: bool = False

    @property
    def label(self) -> str:
        """Unique and readable, such as `ttft_p95_ms@last`."""
        level = f"{self.level:g}" if isinstance(self.level, float | int) else self.level
        per_gpu = "/gpu" if self.per_gpu else ""
        return f"{self.key}{per_gpu}" if self.key == "capacity" else f"{self.key}{per_gpu}@{level}"


@dataclass(frozen=True, slots=True)
class Slo:
    """A limit on a latency, in milliseconds."""

    key: str
    limit_ms: float

    @property
    def name(self) -> str:
        return f"slo_{self.key}"

    def measured(self, report: LevelReport | None) -> float | None:
        """Milliseconds; None where nothing was measured."""
        estimate = report.estimate(self.key) if report is not None else None
        if estimate is None or not math.isfinite(estimate.value) or estimate.value <= 0:
            return None
        return estimate.value

    def violation(self, report: LevelReport | None) -> float:
        """Natural logarithm of measured over limit: 0 at the limit, above 0 beyond it, 1 where nothing was measured."""
        found = self.measured(report)
        return 1.0 if found is None else math.log(found / self.limit_ms)


@dataclass(frozen=True, slots=True)
class _Judged:
    """What a record is worth; `record` tells whether the number of an object still means the same one."""

    record: weakref.ref[TrialRecord]
    values: tuple[float, ...] | None
    constraints: tuple[float, ...]
    rank: tuple[float, ...]


@dataclass(frozen=True)
class Objectives:
    """The study's objectives and limits, and how records compare under them."""

    items: tuple[Objective, ...]
    slos: tuple[Slo, ...] = ()
    levels: tuple[float, ...] = ()
    """The study's load levels; empty where they are placed by the knee or are a trace's own rate."""
    _known: dict[int, _Judged] = field(default_factory=dict, init=False, repr=False, compare=False)
    """By the identity of a record: a search asks for the worth of all its records at every proposal."""

    @classmethod
    def of(cls, spec: StudySpec) -> Objectives:
        """The objectives of a study file."""
        load = spec.load
        own_pace = load.arrivals == "trace" and len(load.levels) < 2  # `levels` may then be the default of other loads
        return cls(
            items=tuple(_objective(item) for item in spec.objectives),
            slos=tuple(_slo(item) for item in spec.slos),
            levels=() if load.knee is not None or own_pace else tuple(load.levels),
        )

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(item.label for item in self.items)

    @property
    def directions(self) -> tuple[Direction, ...]:
        """`maximize` or `minimize`, one per objective."""
        return tuple("maximize" if item.maximize else "minimize" for item in self.items)

    @property
    def constraint_names(self) -> tuple[str, ...]:
        """Names of what `constraints` returns, in its order."""
        return (*(f"{index}_{slo.name}" for index, slo in enumerate(self.slos)), "quality", "feasible")

    def values(self, record: TrialRecord) -> tuple[float, ...] | None:
        """One finite value per objective (milliseconds, tokens per second, ...), or None where one was not measured."""
        return self._judged(record).values

    def _judged(self, record: TrialRecord) -> _Judged:
        known = self._known.get(id(record))
        if known is None or known.record() is not record:
            values = self._values(record)
            constraints = self._constraints(record, values)
            known = _Judged(weakref.ref(record), values, constraints, self._rank(values, constraints))
            self._known[id(record)] = known
        return known

    def _values(self, record: TrialRecord) -> tuple[float, ...] | None:
        if not isinstance(record.outcome, Measured):
            return None
        found = [self._value(item, record.outcome.load.levels, record.gpus) for item in self.items]
        values = tuple(value for value in found if value is not None and math.isfinite(value))
        return values if len(values) == len(self.items) else None

    def complete(self, record: TrialRecord) -> bool:
        """Whether a record tells of every objective and every limit; one of another study need not."""
        if not isinstance(record.outcome, Measured):
            return record.outcome.learn
        known = all(one.estimate(slo.key) is not None for one in record.outcome.load.levels for slo in self.slos)
        return known and self.values(record) is not None

    def constraints(self, record: TrialRecord) -> tuple[float, ...]:
        """One number per SLO, one for the quality gate, one for `feasible`; above 0 is violated. Always all of them.

        What an infeasible configuration would have done to SLOs and quality is not known: 0, neither held nor broken.
        """
        return self._judged(record).constraints

    def _constraints(self, record: TrialRecord, values: tuple[float, ...] | None) -> tuple[float, ...]:
        outcome = record.outcome
        if isinstance(outcome, Measured):
            complete = -1.0 if values is not None else 1.0
            slos = (slo.violation(self.worst(slo, outcome.load.levels)) for slo in self.slos)
            return (*slos, _quality_violation(outcome.quality), complete)
        violation = max(outcome.violation, CLEAR_VIOLATION) if isinstance(outcome, Infeasible) else 1.0
        return (*(0.0 for _ in self.slos), 0.0, violation)

    def feasible(self, record: TrialRecord) -> bool:
        """Measured, and every constraint holds."""
        return isinstance(record.outcome, Measured) and all(value <= 0 for value in self.constraints(record))

    def better(self, first: TrialRecord, second: TrialRecord) -> bool:
        """`first` is to be preferred: feasible before infeasible, then less violation, then the first objective."""
        return self.rank(first) < self.rank(second)

    def rank(self, record: TrialRecord) -> tuple[float, ...]:
        """Sorts records from best to worst: total violation, then the objectives in their order."""
        return self._judged(record).rank

    def _rank(self, values: tuple[float, ...] | None, constraints: tuple[float, ...]) -> tuple[float, ...]:
        violation = sum(max(value, 0.0) for value in constraints)
        return (math.inf, violation) if values is None else (violation, *self.losses(values))

    def losses(self, values: Sequence[float]) -> tuple[float, ...]:
        """Values as losses on their natural scale: smaller is better for every objective."""
        return tuple(-value if item.maximize else value for item, value in zip(self.items, values, strict=True))

    def model_losses(self, values: Sequence[float]) -> tuple[float, ...]:
        """Losses for models: logarithms, because effects on speeds and latencies multiply."""
        return tuple(
            -self._log(item, value) if item.maximize else self._log(item, value)
            for item, value in zip(self.items, values, strict=True)
        )

    def _log(self, item: Objective, value: float) -> float:
        floor = min(self.levels) / 2 if item.key == "capacity" and self.levels else 1e-9
        return math.log(max(value, floor))

    def _value(self, item: Objective, levels: Sequence[LevelReport], gpus: int) -> float | None:
        if item.key == "capacity":
            found: float | None = max((one.level.value for one in levels if self._holds(one)), default=0.0)
        elif item.level == "area":
            area = area_of(levels, item.key)
            found = area.value if area is not None else None
        elif item.level == "best":
            found = self._best(item, levels)
        else:
            report = self.report_at(item.level, levels)
            found = _figure(report, item.key) if report is not None else None
        if found is None:
            return None
        return found / gpus if item.per_gpu and gpus > 0 else found

    def _best(self, item: Objective, levels: Sequence[LevelReport]) -> float | None:
        holding = [one for one in levels if self._holds(one)] or list(levels)
        figures = [value for one in holding if (value := _figure(one, item.key)) is not None]
        if not figures:
            return None
        return max(figures) if item.maximize else min(figures)

    def report_at(self, level: float | str, levels: Sequence[LevelReport]) -> LevelReport | None:
        """The report of the one level that an objective reads: `first`, `last` or a level's value."""
        if not levels:
            return None
        if isinstance(level, str):
            index = 0 if level == "first" else -1
            if not self.levels:
                return levels[index]
            level = self.levels[index]
        return next((one for one in levels if math.isclose(one.level.value, level, rel_tol=1e-6)), None)

    def _holds(self, report: LevelReport) -> bool:
        return all(slo.violation(report) <= 0 for slo in self.slos)

    def worst(self, slo: Slo, levels: Sequence[LevelReport]) -> LevelReport | None:
        """The level that violates a limit most, of those that the objectives read; None where one was not reached.

        With `best` or `capacity` one level that holds is enough, and with `area` all must hold.
        """
        picked: list[LevelReport | None] = []
        for item in self.items:
            if not levels:
                picked.append(None)
            elif item.key == "capacity" or item.level == "best":
                picked.append(min(levels, key=lambda one: max(other.violation(one) for other in self.slos)))
            elif item.level == "area":
                picked += levels
            else:
                picked.append(self.report_at(item.level, levels))
        return max(picked, key=slo.violation)


def searched(history: Iterable[TrialRecord]) -> list[TrialRecord]:
    """The records that teach the search, one per configuration: no faults of ours, no repeats; the latest counts."""
    latest: dict[str, TrialRecord] = {}
    for record in history:
        if record.outcome.learn and record.proposal.origin not in REPEATS:
            latest[record.config.hash] = record
    return sorted(latest.values(), key=lambda record: record.number)


def _objective(spec: ObjectiveSpec) -> Objective:
    latency = spec.metric in LATENCIES
    key = f"{spec.metric}_p{spec.percentile or 95:g}_ms" if latency else spec.metric
    maximize = spec.direction == "maximize" if spec.direction else not latency
    return Objective(key=key, maximize=maximize, level=spec.level, per_gpu=spec.per_gpu)


def _slo(spec: SloSpec) -> Slo:
    return Slo(key=f"{spec.metric}_p{spec.percentile:g}_ms", limit_ms=spec.limit * 1000)


def _figure(report: LevelReport, key: str) -> float | None:
    estimate = report.estimate(key)
    return estimate.value if estimate is not None else dict(report.engine).get(key)


def _quality_violation(report: QualityReport | None) -> float:
    if report is None or report.verdict in (QualityVerdict.PASSED, QualityVerdict.SKIPPED, QualityVerdict.UNDECIDED):
        return -1.0
    return max(report.violation, CLEAR_VIOLATION)
