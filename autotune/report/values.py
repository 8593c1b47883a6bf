"""What a report says, as values: every format is written from these and from nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autotune.load.report import Estimate


class Standing(StrEnum):
    """How a trial stands under the study's limits; each has its own mark in every chart and table."""

    FRONT = "front"
    """Feasible, and no other feasible configuration beats it in every objective."""
    FEASIBLE = "feasible"
    LIMIT = "limit"
    """Measured, but a latency limit does not hold."""
    QUALITY = "quality"
    """Measured, but the answers fail the quality gate."""
    INFEASIBLE = "infeasible"
    REFUSED = "refused"
    """Infeasible, known before an engine was started."""
    BROKEN = "broken"
    """A fault of the machine or ours; nothing was learnt."""


@dataclass(frozen=True, slots=True)
class Column:
    """One objective.

    Attributes:
        label: unique, as the commands print it, such as `ttft_p95_ms@last`.
        title: for people, such as `TTFT p95`.
        unit: such as `ms`; empty for shares and counts.
        maximize: more is better.
    """

    label: str
    title: str
    unit: str
    maximize: bool


@dataclass(frozen=True, slots=True)
class LevelView:
    """One load level of a trial: client-side figures by metric key, engine-side ones by name."""

    name: str
    value: float
    figures: tuple[tuple[str, Estimate], ...]
    engine: tuple[tuple[str, float], ...]
    requests: int
    errors: int
    window_s: float
    stopped: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckView:
    """One statistic of the quality gate. `used` is the share of its limit that it takes up, as are `low`, `high` and
    `noise`: above 1 the check fails. A `plain` check holds or does not: it has no figure and no limit."""

    name: str
    plain: bool
    text: str
    used: float
    low: float
    high: float
    noise: float
    verdict: str
    note: str


@dataclass(frozen=True, slots=True)
class QualityView:
    """The gate's verdict on the trials that share a precision key."""

    key: str
    verdict: str
    trials: tuple[int, ...]
    changes: str
    checks: tuple[CheckView, ...]


@dataclass(frozen=True, slots=True)
class TrialView:
    """One trial.

    Attributes:
        repeat: measures a known configuration again (confirmation, sentinel); not a point of the search.
        outcome: a short phrase.
        reason: why it was not measured or breaks a limit, redacted; empty where all is well.
        changes: what differs from the baseline.
        objectives: one estimate per objective, or empty.
        begin_s: seconds from the start of the study's first trial.
    """

    number: int
    origin: str
    note: str
    standing: Standing
    repeat: bool
    outcome: str
    reason: str
    changes: str
    args: tuple[tuple[str, str], ...]
    env: tuple[tuple[str, str], ...]
    objectives: tuple[Estimate, ...]
    begin_s: float
    seconds: float
    gpus: int
    stages: tuple[tuple[str, float], ...]
    phases: tuple[tuple[str, float], ...]
    levels: tuple[LevelView, ...]
    kv_cache_tokens: int
    restarted: bool
    config: str


@dataclass(frozen=True, slots=True)
class GainView:
    """Baseline against recommendation in one objective. `ratio` above 1 is better, whatever the direction.

    Attributes:
        baseline: the baseline's figure, or None.
        found: the recommended configuration's figure, or None.
        ratio: from fresh starts where `confirmed`, else from the search's own measurements, or None.
        low: lower end of the ratio's interval, None where it has none.
        high: upper end.
        starts: fresh starts that both figures were taken from, whose intervals they span; 0: one trial of the search.
    """

    column: Column
    baseline: Estimate | None
    found: Estimate | None
    ratio: float | None
    low: float | None
    high: float | None
    confirmed: bool
    starts: int = 0


@dataclass(frozen=True, slots=True)
class ChangeView:
    """One setting of the recommendation. `worth`: what it is worth by its own undo test, empty where there was none."""

    name: str
    before: str
    after: str
    worth: str = ""


@dataclass(frozen=True, slots=True)
class FailureView:
    """All trials that failed in one way."""

    cause: str
    standing: Standing
    trials: tuple[int, ...]
    seconds: float
    reason: str
    advice: tuple[str, ...]
    excerpt: str
    """The end of one engine log, redacted; empty where there is none."""


@dataclass(frozen=True, slots=True)
class RefusedView:
    """Configurations that were refused before a start for one cause."""

    cause: str
    count: int
    reason: str
    """Of the first one, redacted."""
    advice: str


@dataclass(frozen=True, slots=True)
class EffectView:
    """How one value of a setting changes an objective with all other settings equal.

    Attributes:
        value: the setting's value as a person would write it.
        ratio: against the study's mean, above 1 is better; with its 95 % interval.
        trials: measured trials that had it.
    """

    value: str
    ratio: float
    low: float
    high: float
    trials: int


@dataclass(frozen=True, slots=True)
class SettingView:
    """A setting that was varied.

    Attributes:
        importance: share of the objective's variation that it explains, one per objective.
        effects: one row of effects per objective.
    """

    name: str
    importance: tuple[float, ...]
    effects: tuple[tuple[EffectView, ...], ...]


@dataclass(frozen=True, slots=True)
class ReportContent:
    """A whole report.

    Attributes:
        sentences: the three sentences that a reader in a hurry reads.
        simulated: the engine was a simulator; the report says so at its top.
        chosen: number of the recommended trial, or None.
        fits: how much of each objective's variation the effects explain (R squared, adjusted), 0 to 1.
        spending: (stage, seconds of GPU time), and time of failed trials as `failed`.
        account: what became of the configurations of the space, in one sentence; empty where nobody counted.
        facts: name and value of what the study ran on.
        notes: what the reader should know about the data: drift, changed hosts, missing parts.
        command: the command that starts the recommendation.
        study_file: the study with its defaults filled in, redacted.
        unproven: what the confirmation found of each finalist where it proved no gain.
        left_out: settings of the winner that make no difference, with the finding.
    """

    name: str
    model: str
    written: str
    version: str
    simulated: bool
    sentences: tuple[str, str, str]
    columns: tuple[Column, ...]
    limits: tuple[tuple[str, float], ...]
    gains: tuple[GainView, ...]
    changes: tuple[ChangeView, ...]
    chosen: int | None
    baseline: int | None
    trials: tuple[TrialView, ...]
    settings: tuple[SettingView, ...]
    fits: tuple[float, ...]
    spending: tuple[tuple[str, float], ...]
    efficiency: tuple[tuple[str, str], ...]
    failures: tuple[FailureView, ...]
    account: str
    refused: tuple[RefusedView, ...]
    quality: tuple[QualityView, ...]
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    command: str
    study_file: str
    path: str
    unproven: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def kept(self) -> bool:
        """Nothing better than what runs today is recommended."""
        return self.chosen is not None and self.chosen == self.baseline and not self.changes

    @property
    def figures_note(self) -> str:
        """Where the figures and ratios of `gains` come from, and what their brackets are."""
        starts = max((row.starts for row in self.gains), default=0)
        text = "Figures are those of one trial of the search, with 95 % intervals."
        if starts:
            text = (
                f"Figures are geometric means of {starts} fresh starts; their brackets span the starts' 95 % intervals."
            )
        if self.kept:
            return f"{text} A gain is claimed where its whole interval on fresh starts is beyond the margin."
        text += " A ratio above ×1 is better, also where less is more;"
        if any(row.confirmed for row in self.gains):
            return f"{text} it is taken between starts of the same round, with a 95 % interval over the rounds."
        return f"{text} one without brackets is the search's own and not confirmed."
