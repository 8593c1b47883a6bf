"""What a study will cost in hours, before anything is started."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.spec.study import StudySpec

_LIVE_SHARE = 0.5
"""Of the trials where an engine can change settings live: about every second one needs no new process."""
_NEW_COMPILE_SHARE = 0.5
"""Of the starts on a GPU: those that meet a new batch size, number format or layout and compile."""

_CLIMBED = 7
"""Levels on the way to the baseline's knee: from 4 requests in flight to 256, from a quarter of one a second to 16."""


@dataclass(frozen=True, slots=True)
class TrialSeconds:
    """Seconds of the parts of a trial, and where they come from.

    Attributes:
        start: a new process.
        compile: what a compilation adds.
        live: changing settings of a running engine.
        measure: warm-up, all levels and the quality gate.
        source: in words.
    """

    start: float
    compile: float
    live: float
    measure: float
    source: str


@dataclass(frozen=True, slots=True)
class Expense:
    """Expected cost of a study.

    Attributes:
        trials: measured configurations, the baseline included.
        confirmations: fresh starts of the confirmation.
        searching: seconds until the search ends, its limits not counted in.
        neighbours: of those, the check that trials at the same time do not disturb each other, if the first one passes.
        confirming: seconds of the confirmation, which no limit of the search cuts.
        limit: what the study allows the search, seconds; None without a limit.
        gpus: of one trial (1 where it runs without GPUs).
        together: of all trials at the same time; the confirmation runs alone.
        per_trial: what it was made of.
    """

    trials: int
    confirmations: int
    searching: float
    neighbours: float
    confirming: float
    limit: float | None
    gpus: int
    together: int
    per_trial: TrialSeconds

    @property
    def cut(self) -> bool:
        """Whether the limit ends the search before its trials do."""
        return self.limit is not None and self.limit < self.searching

    @property
    def seconds(self) -> float:
        """Of the clock, with the limit."""
        return self._search + self.confirming

    @property
    def gpu_hours(self) -> float:
        return (self._search * self.together + self.confirming * self.gpus) / 3600

    @property
    def _search(self) -> float:
        return self.limit if self.limit is not None and self.cut else self.searching


def prior_seconds(spec: StudySpec) -> TrialSeconds:
    """What a trial of such a study usually takes: starts as measured on H200 and on CPUs, windows as written.

    Source: docs/evidence/README.md, starts of GLM-4-9B's and Qwen3-30B-A3B's shapes.
    """
    simulated = spec.engine.simulate if spec.engine.kind == "simulated" else None
    cpu = spec.engine.python == "cpu" or spec.hardware.gpus == 0
    speed = simulated.speed if simulated is not None else 1.0
    start, compile_s = (35.0, 0.0) if cpu else (65.0, 30.0)
    if spec.engine.kind == "vllm" and spec.engine.fast_start and not cpu:
        start = 30.0
    if spec.engine.kind == "endpoint":
        start, compile_s = 0.0, 0.0
    window = spec.load.window
    one = max(window.duration or 0.0, 30.0 if window.requests is not None else 0.0)
    measure = len(spec.load.levels) * (min(one, window.max_duration) + min(0.3 * spec.load.warmup.max_duration, 20.0))
    quality = 15.0 if spec.quality.enabled else 0.0
    return TrialSeconds(start / speed, compile_s / speed, 2.0 / speed, measure / speed + quality, "usual figures")


def expense(spec: StudySpec, seconds: TrialSeconds, *, gpus: int, live: bool, rounds: int) -> Expense:
    """What the study will cost.

    Args:
        spec: the study.
        seconds: of a trial's parts.
        gpus: of one trial; 0 without GPUs.
        live: the engine changes settings without a restart.
        rounds: that a check of neighbours takes at least.
    """
    trials = spec.search.trials + 1
    confirmations = spec.confirm.rounds * (spec.confirm.finalists + 1 + len(spec.confirm.against))
    sentinels = trials // spec.search.sentinel_every if spec.search.sentinel_every else 0
    start = seconds.start + _NEW_COMPILE_SHARE * seconds.compile
    usual = _LIVE_SHARE * seconds.live + (1 - _LIVE_SHARE) * start if live else start
    parallel = spec.hardware.parallel_trials
    climb = _CLIMBED * seconds.measure if spec.load.knee is not None else 0.0
    search = climb + (trials + sentinels) * (usual + seconds.measure) / parallel
    check = neighbour_seconds(spec, seconds, rounds)
    confirming = confirmations * (seconds.start + seconds.measure)
    limits = [spec.search.wall_clock] if spec.search.wall_clock is not None else []
    mine = max(gpus, 1)
    together = (spec.hardware.gpus or mine) if spec.hardware.shared else mine * parallel
    if spec.search.gpu_hours is not None:
        limits.append(spec.search.gpu_hours * 3600 / together)
    limit = min(limits, default=None)
    return Expense(trials, confirmations, check + search, check, confirming, limit, mine, together, seconds)


def neighbour_seconds(spec: StudySpec, seconds: TrialSeconds, rounds: int) -> float:
    """The engines start at all places at once; then every round measures the baseline alone and beside the others."""
    if spec.hardware.parallel_trials == 1 or not spec.hardware.neighbour_check:
        return 0.0
    return seconds.start + (1 + 2 * rounds) * seconds.measure
