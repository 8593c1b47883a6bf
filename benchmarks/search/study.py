"""A surface as a study: its space, its known good settings, its preflight, and an engine that costs GPU seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from autotune.engine.protocol import Resolved
from autotune.load.report import Estimate, Level, LevelReport, LoadReport
from autotune.outcome import Infeasible, Measured, Outcome, Proposal, TrialRecord
from autotune.quality.report import QualityReport, QualityVerdict
from autotune.search.objectives import Objective, Objectives
from autotune.space.config import EngineConfig, FrozenValue
from autotune.space.expression import parse_expression
from autotune.space.headroom import AS_ASKED, Headroom
from autotune.space.layout import Layout
from autotune.space.space import Parameter, SearchSpace
from benchmarks.search.surfaces import WEIGHT_BYTES, Surface, evaluate

WEIGHTS = ("none", "fp8", "int4")
GRAPHS = ("none", "piecewise", "full")
DRAFTS = ("none", "ngram", "eagle")
SEQS, BATCHED = "max_num_seqs", "max_num_batched_tokens"
"""vLLM's own names, by which a search knows what is a replica's own, and how wide engines are started."""
COLUMNS = {SEQS: "seqs", BATCHED: "batched"}
"""What `evaluate` calls a setting where that is not the setting's own name."""
LIVE = frozenset({SEQS, BATCHED})
COMPILES = ("layout", "weights", "kv8", BATCHED, "graph")
OBJECTIVES = Objectives(
    items=(Objective("output_throughput", True, "last"), Objective("ttft_p95_ms", False, "last")), levels=(1.0,)
)


@dataclass(frozen=True)
class Names:
    """How a space calls what searches must know.

    Attributes:
        live: settings that a running engine can change.
        compiles: settings whose change means a new compilation.
    """

    live: frozenset[str]
    compiles: tuple[str, ...]
    utilization: str
    seqs: str
    batched: str


@dataclass(frozen=True, slots=True)
class Figures:
    """Noise-free figures of one configuration; `failed`: 0 runs, 1 fails at its start, 2 dies under load."""

    throughput: float
    ttft_s: float
    loss: float
    failed: int


class Ground(Protocol):
    """What every surface says about itself."""

    @property
    def name(self) -> str: ...
    @property
    def gpus(self) -> int: ...
    @property
    def slo_s(self) -> float: ...
    @property
    def gate(self) -> float: ...
    @property
    def held_out(self) -> bool: ...


@dataclass(frozen=True)
class Costs:
    """Seconds, as measured on one H200: a cold start 100 to 145 s, a warm one 60 s, a load of three levels 40 s."""

    start: float = 60.0
    compile: float = 45.0
    measure: float = 40.0
    live: float = 2.0

    @property
    def plain(self) -> float:
        """A trial that starts and compiles."""
        return self.start + self.compile + self.measure


@dataclass(frozen=True)
class Noise:
    """Relative standard deviations, and a share of runs that are slow for no reason of theirs."""

    throughput: float = 0.03
    ttft: float = 0.05
    slow_share: float = 0.05


def space_of(surface: Surface) -> SearchSpace:
    """Fourteen settings, eleven on one GPU."""
    half_octaves = [round(2 ** (step / 2)) for step in range(8, 21)]
    parameters = [
        Parameter("gmu", "ladder", tuple(round(0.80 + 0.02 * step, 2) for step in range(10)), ordered=True),
        Parameter(SEQS, "ladder", tuple(half_octaves), ordered=True),
        Parameter(BATCHED, "ladder", tuple(round(2 ** (step / 2)) for step in range(18, 31)), ordered=True),
        Parameter("weights", "choice", WEIGHTS),
        Parameter("kv8", "switch", (False, True)),
        Parameter("block", "ladder", (16, 32, 64), ordered=True),
        Parameter("prefix", "switch", (False, True)),
        Parameter("overlap", "switch", (False, True)),
        Parameter("graph", "choice", GRAPHS),
        Parameter("capture", "ladder", tuple(half_octaves), when=parse_expression('graph != "none"'), ordered=True),
        Parameter("draft", "choice", DRAFTS),
        Parameter("draft_tokens", "ladder", (1, 2, 3, 4, 5), when=parse_expression('draft != "none"'), ordered=True),
    ]
    if surface.gpus > 1:
        parameters.insert(0, Parameter("layout", "layout", tuple(str(one) for one in _layouts(surface))))
    return SearchSpace(surface.name, tuple(parameters), requires=(parse_expression(f"{BATCHED} >= {SEQS}"),))


def _layouts(surface: Surface) -> list[Layout]:
    sizes = [size for size in (1, 2, 4, 8) if size <= surface.gpus]
    experts = (False, True) if surface.expert_share else (False,)
    return [Layout(tp, surface.gpus // tp, 1, ep) for tp in sizes for ep in experts]


def baseline_point(surface: Surface) -> dict[str, FrozenValue]:
    """What an online server defaults to, on the layout that surely fits."""
    layout = {"layout": str(Layout(surface.gpus, 1))} if surface.gpus > 1 else {}
    return {
        **layout, "gmu": 0.90, SEQS: 256, BATCHED: 2048, "weights": "none", "kv8": False, "block": 16,
        "prefix": True, "overlap": False, "graph": "full", "capture": 512, "draft": "none",
    }  # fmt: skip


def expert_points(surface: Surface) -> list[dict[str, FrozenValue]]:
    """Five settings of the kind that public advice gives: one or two changes each, none tuned on a surface."""
    base = baseline_point(surface)
    points = [{**base, BATCHED: 8192}, {**base, "weights": "fp8"}, {**base, "gmu": 0.96, SEQS: 512}]
    if surface.gpus > 1:
        half = {"layout": str(Layout(surface.gpus // 2, 2)), "weights": "fp8"}
        wide = {
            "layout": str(Layout(surface.gpus, 1, 1, bool(surface.expert_share))),
            "weights": "fp8",
            BATCHED: 8192,
        }
        return [*points, {**base, **half}, {**base, **wide}]
    return [*points, {**base, "draft": "eagle", "draft_tokens": 3}, {**base, "kv8": True, SEQS: 512}]


def columns_of(points: Sequence[Mapping[str, FrozenValue]], surface: Surface) -> dict[str, NDArray]:
    """Points as arrays of settings for `evaluate`."""
    layouts = [Layout.parse(str(point["layout"])) if "layout" in point else Layout() for point in points]
    table: dict[str, list[float]] = {
        "tp": [one.tensor for one in layouts],
        "dp": [one.data for one in layouts],
        "ep": [one.expert and surface.gpus > 1 for one in layouts],
        "weights": [WEIGHTS.index(str(point["weights"])) for point in points],
        "graph": [GRAPHS.index(str(point["graph"])) for point in points],
        "draft": [DRAFTS.index(str(point["draft"])) for point in points],
    }
    for name in ("gmu", SEQS, BATCHED, "kv8", "block", "prefix", "overlap"):
        table[COLUMNS.get(name, name)] = [float(point[name]) for point in points]  # type: ignore[arg-type]
    for name in ("capture", "draft_tokens"):
        table[name] = [float(point.get(name) or 0) for point in points]  # type: ignore[arg-type]
    return {name: np.asarray(values) for name, values in table.items()}


@dataclass
class SimulatedStudy:
    """Runs proposals on a surface and counts what they cost. Noise depends on seed and trial number only."""

    names: ClassVar[Names] = Names(LIVE, COMPILES, utilization="gmu", seqs=SEQS, batched=BATCHED)
    surface: Ground
    seed: int
    live: bool = False
    costs: Costs = field(default_factory=Costs)
    noise: Noise = field(default_factory=Noise)
    history: list[TrialRecord] = field(default_factory=list)
    truths: list[tuple[float, float, float, bool]] = field(default_factory=list)
    """Throughput, TTFT in seconds, quality loss and whether it is truly good, as a plain restart would give it."""
    seconds: list[float] = field(default_factory=list)
    running: EngineConfig | None = None
    """What the engine that runs was started with; None where none runs."""
    _compiled: set[tuple[FrozenValue, ...]] = field(default_factory=set)

    @property
    def formula(self) -> Surface:
        assert isinstance(self.surface, Surface)
        return self.surface

    @cached_property
    def space(self) -> SearchSpace:
        return space_of(self.formula)

    def baseline_point(self) -> dict[str, FrozenValue]:
        return baseline_point(self.formula)

    def expert_points(self) -> list[dict[str, FrozenValue]]:
        return expert_points(self.formula)

    def baseline(self) -> EngineConfig:
        return self.space.config(self.baseline_point(), EngineConfig())

    def figures(self, point: Mapping[str, FrozenValue], started: Mapping[str, FrozenValue]) -> Figures:
        """What `point` does on an engine that was started at `started`."""
        columns = (columns_of([one], self.formula) for one in (point, started))
        truth = evaluate(self.formula, *columns)
        return Figures(float(truth.throughput[0]), float(truth.ttft_s[0]), float(truth.loss[0]), int(truth.failed[0]))

    def refuse(self, config: EngineConfig) -> str | None:
        """A memory model that knows neither communication buffers nor the peaks of a load exactly."""
        args, s = dict(config.args), self.formula
        layout = Layout.of(config)
        batched, gmu = float(args[BATCHED]), float(args["gmu"])  # type: ignore[arg-type]
        weights = s.total_b * 1e9 * WEIGHT_BYTES[WEIGHTS.index(str(args["weights"]))] * 0.98
        ranks = layout.tensor * layout.data if layout.expert else layout.tensor
        per_gpu = weights * (1 - s.expert_share) / layout.tensor + weights * s.expert_share / ranks
        pool = gmu * s.card.memory - per_gpu - 0.5e9 - batched * 0.4e6 / math.sqrt(layout.tensor)
        need = s.longest * s.kv_bytes * (0.5 if args["kv8"] else 1.0) / layout.tensor
        outside = 1.9e9 + 0.08e6 * batched + (0.6e9 if args["graph"] != "none" else 0.0)
        if pool < need:
            return "the KV cache has no room for one longest sequence"
        return "nothing left outside the KV cache" if outside > (1 - gmu) * s.card.memory else None

    @cached_property
    def headroom(self) -> Headroom:
        """How wide engines are started: as what runs today where they can be lowered live, else as asked."""
        return Headroom.of(self.baseline(), {}) if self.live else AS_ASKED

    def run(self, proposal: Proposal) -> TrialRecord:
        """Measure a proposal, live where the running engine allows it."""
        config, running = proposal.config, self.running
        if running is not None and self._reachable(config):
            restarted, engine, start = False, running, self.costs.live
        else:
            restarted, (engine, start) = True, self._start(config)
        point, limits = self._point(config), self._point(engine)
        seen = self.figures(point, limits)
        plain = seen if engine == config else self.figures(point, point)
        outcome = self._outcome(seen)
        measure = self.costs.measure * (1.0, 0.0, 0.5)[seen.failed]
        record = TrialRecord(
            number=len(self.history), proposal=proposal, outcome=outcome, started_at=sum(self.seconds),
            seconds=start + measure, gpus=self.surface.gpus, stage_seconds=(("start", start), ("measure", measure)),
            restarted=restarted, resolved=Resolved(((self.names.batched, limits[self.names.batched]),)),
        )  # fmt: skip
        self.running = engine if isinstance(outcome, Measured) else None
        self.history.append(record)
        self.seconds.append(start + measure)
        good = plain.failed == 0 and plain.loss <= self.surface.gate
        self.truths.append((plain.throughput, plain.ttft_s, plain.loss, good))
        return record

    def _reachable(self, config: EngineConfig) -> bool:
        """The running engine can be changed to `config`: same start, limits not above what it was started with."""
        running, live = self.running, self.names.live
        if not self.live or running is None or running.restart_key(live) != config.restart_key(live):
            return False
        return all(float(config.get(name)) <= float(running.get(name)) for name in live)  # type: ignore[arg-type]

    def _start(self, config: EngineConfig) -> tuple[EngineConfig, float]:
        """What is started for a configuration and the seconds that it takes.

        As wide as the search wants it, unless the memory model refuses that; if it then cannot start, once more as
        asked, as in the product.
        """
        wide, spent = self.headroom.widened(config), 0.0
        if wide != config and self.refuse(wide) is None:
            limits = self._point(wide)
            fits = self.figures(self._point(config), limits).failed != 1
            spent = self._starting(limits, fits)
            if fits:
                return wide, spent
        point = self._point(config)
        return config, spent + self._starting(point, self.figures(point, point).failed != 1)

    def _starting(self, limits: Mapping[str, FrozenValue], fits: bool) -> float:
        """Seconds of a start; whoever gets through it leaves compiled kernels."""
        key = tuple(limits.get(name) for name in self.names.compiles)
        seconds = self.costs.start + (0.0 if key in self._compiled else self.costs.compile)
        if fits:
            self._compiled.add(key)
        return seconds

    def _point(self, config: EngineConfig) -> Mapping[str, FrozenValue]:
        point = self.space.point_of(config)
        assert point is not None
        return point

    def _outcome(self, truth: Figures) -> Outcome:
        rng = np.random.default_rng([self.seed, len(self.history), 17])
        slow = 1 + (rng.uniform(0.08, 0.20) if rng.random() < self.noise.slow_share else 0.0)
        draws = rng.normal(size=3)
        if truth.failed:
            cause = "oom_start" if truth.failed == 1 else "oom_serving"
            return Infeasible(cause, "out of memory on the surface")
        throughput = float(truth.throughput * np.exp(self.noise.throughput * draws[0]) / slow)
        ttft = float(1000 * truth.ttft_s * np.exp(self.noise.ttft * draws[1]) * slow**1.5)
        loss = truth.loss + 0.12 * float(draws[2])
        metrics = tuple(
            (key, Estimate(value, value, value, 100))
            for key, value in (("output_throughput", throughput), ("ttft_p95_ms", ttft))
        )
        passed = loss <= self.surface.gate
        quality = QualityReport(
            QualityVerdict.PASSED if passed else QualityVerdict.FAILED, (), max(loss - self.surface.gate, 0.0), "", 5.0
        )
        return Measured(LoadReport((LevelReport(Level("closed", 1.0), metrics, requests=100),)), quality)
