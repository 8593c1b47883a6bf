"""What a study will cost in hours, before anything is started."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.spec.study import StudySpec

_LIVE_SHARE = 0.5
"""Of the trials where an engine can change settings live: about every second one needs no new process."""
_NEW_COMPILE_SHARE = 0.5
"""Of the starts on a GPU: those that meet a new batch size, number format or layout and compile."""


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
        seconds: of the clock, limits of the study not counted in.
        limit: what the study allows, seconds; None without a limit.
        gpus: of all trials that run at once (1 where it runs without GPUs).
        per_trial: what it was made of.
    """

    trials: int
    confirmations: int
    seconds: float
    limit: float | None
    gpus: int
    per_trial: TrialSeconds

    @property
    def bounded(self) -> float:
        """Seconds with the limit."""
        return min(self.seconds, self.limit) if self.limit is not None else self.seconds

    @property
    def gpu_hours(self) -> float:
        return self.bounded * self.gpus / 3600


def prior_seconds(spec: StudySpec) -> TrialSeconds:
    """What a trial of such a study usually takes: starts as measured on an H200 and on CPUs, windows as written."""
    simulated = spec.engine.simulate if spec.engine.kind == "simulated" else None
    cpu = spec.engine.python == "cpu" or spec.hardware.gpus == 0
    speed = simulated.speed if simulated is not None else 1.0
    start, compile_s = (35.0, 0.0) if cpu else (75.0, 45.0)
    if spec.engine.kind == "endpoint":
        start, compile_s = 0.0, 0.0
    window = spec.load.window
    one = max(window.duration or 0.0, 30.0 if window.requests is not None else 0.0)
    measure = len(spec.load.levels) * (min(one, window.max_duration) + min(0.3 * spec.load.warmup.max_duration, 20.0))
    quality = 15.0 if spec.quality.enabled else 0.0
    return TrialSeconds(start / speed, compile_s / speed, 2.0 / speed, measure / speed + quality, "usual figures")


def expense(spec: StudySpec, seconds: TrialSeconds, *, gpus: int, live: bool) -> Expense:
    """What the study will cost.

    Args:
        spec: the study.
        seconds: of a trial's parts.
        gpus: of one trial; 0 without GPUs.
        live: the engine changes settings without a restart.
    """
    trials = spec.search.trials + 1
    confirmations = spec.confirm.rounds * (spec.confirm.finalists + 1)
    sentinels = trials // spec.search.sentinel_every if spec.search.sentinel_every else 0
    start = seconds.start + _NEW_COMPILE_SHARE * seconds.compile
    usual = _LIVE_SHARE * seconds.live + (1 - _LIVE_SHARE) * start if live else start
    parallel = spec.hardware.parallel_trials
    search = (trials + sentinels) * (usual + seconds.measure) / parallel
    total = search + confirmations * (seconds.start + seconds.measure)
    limits = [spec.search.wall_clock] if spec.search.wall_clock is not None else []
    used = max(gpus, 1) * parallel
    if spec.search.gpu_hours is not None:
        limits.append(spec.search.gpu_hours * 3600 / used)
    return Expense(trials, confirmations, total, min(limits, default=None), used, seconds)
