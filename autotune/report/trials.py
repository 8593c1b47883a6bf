"""Records of trials as a report shows them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from autotune.engine.redaction import redact
from autotune.load.area import area_of
from autotune.load.report import Estimate, LevelReport
from autotune.outcome import Broken, Infeasible, Measured, TrialRecord
from autotune.quality.report import QualityCheck, QualityVerdict
from autotune.report.values import CheckView, LevelView, QualityView, Standing, TrialView
from autotune.report.wording import changes_text, metric_title, number_text, outcome_text, value_text
from autotune.search.front import front_of
from autotune.search.objectives import REPEATS, Objective, Objectives
from autotune.space.config import EngineConfig
from autotune.space.defaults import real_changes


def trial_views(
    records: Sequence[TrialRecord], objectives: Objectives, baseline: EngineConfig
) -> tuple[TrialView, ...]:
    """Every trial, in order."""
    front = {record.number for record in front_of(records, objectives)}
    begin = min((record.started_at for record in records), default=0.0)
    return tuple(_view(record, objectives, baseline, front, begin) for record in records)


def trial_folder(record: TrialRecord, home: Path | None) -> Path | None:
    """The folder with a trial's files: inside the study's folder `home`, wherever that has been moved to."""
    if record.folder is None:
        return None
    moved = home / record.folder.name if home is not None else record.folder
    return moved if moved.is_dir() else record.folder


def standing_of(record: TrialRecord, objectives: Objectives, front: set[int]) -> Standing:
    """How a record stands; `front` holds the numbers of the front's members."""
    match record.outcome:
        case Broken():
            return Standing.BROKEN
        case Infeasible(started=started):
            return Standing.INFEASIBLE if started else Standing.REFUSED
        case Measured(quality=quality):
            if quality is not None and quality.verdict == QualityVerdict.FAILED:
                return Standing.QUALITY
            if not objectives.feasible(record):
                return Standing.LIMIT
            return Standing.FRONT if record.number in front else Standing.FEASIBLE


def objective_estimates(record: TrialRecord, objectives: Objectives) -> tuple[Estimate, ...]:
    """One estimate per objective, or an empty tuple where one was not measured."""
    values = objectives.values(record)
    if values is None or not isinstance(record.outcome, Measured):
        return ()
    levels = record.outcome.load.levels
    return tuple(
        _estimate(item, value, levels, record.gpus) for item, value in zip(objectives.items, values, strict=True)
    )


def _estimate(item: Objective, value: float, levels: Sequence[LevelReport], gpus: int) -> Estimate:
    """The estimate that an objective's value came from; a point without an interval where it was computed."""
    share = gpus if item.per_gpu and gpus > 0 else 1
    if item.level == "area" and (area := area_of(levels, item.key)) is not None:
        return Estimate(value, area.low / share, area.high / share, area.n)
    for level in reversed(levels):
        found = level.estimate(item.key)
        if found is not None and math.isclose(found.value / share, value, rel_tol=1e-9):
            return Estimate(value, found.low / share, found.high / share, found.n)
    return Estimate(value, value, value, 0)


def _view(
    record: TrialRecord, objectives: Objectives, baseline: EngineConfig, front: set[int], begin: float
) -> TrialView:
    measured = record.outcome.load.levels if isinstance(record.outcome, Measured) else ()
    warnings = record.resolved.warnings if record.resolved else ()
    return TrialView(
        number=record.number,
        origin=record.proposal.origin,
        note=redact("; ".join(text for text in (record.proposal.note, *warnings) if text)),
        standing=standing_of(record, objectives, front),
        repeat=record.proposal.origin in REPEATS,
        outcome=outcome_text(record.outcome),
        reason=reason_of(record, objectives),
        changes=redact(changes_text(record.config, baseline)),
        args=tuple((name, redact(value_text(value))) for name, value in record.config.args),
        env=_env(record.config),
        objectives=objective_estimates(record, objectives),
        begin_s=record.started_at - begin,
        seconds=record.seconds,
        gpus=record.gpus,
        stages=record.stage_seconds,
        phases=tuple((phase.name, phase.seconds) for phase in record.phases),
        levels=tuple(_level(level) for level in measured),
        kv_cache_tokens=record.resolved.kv_cache_tokens if record.resolved else 0,
        restarted=record.restarted,
        config=record.config.hash,
    )


def _env(config: EngineConfig) -> tuple[tuple[str, str], ...]:
    """Variables, redacted by name and value together: only the name tells that a value is secret."""
    pairs = (redact(f"{name}={value}").partition("=") for name, value in config.env)
    return tuple((name, value) for name, _, value in pairs)


def _level(level: LevelReport) -> LevelView:
    return LevelView(
        name=str(level.level), value=level.level.value, figures=level.metrics, engine=level.engine,
        requests=level.requests, errors=level.errors, window_s=level.window_s, stopped=level.stopped or "",
        notes=level.notes,
    )  # fmt: skip


def reason_of(record: TrialRecord, objectives: Objectives) -> str:
    """Why a record is not feasible, with figures and limits; empty where it is."""
    outcome = record.outcome
    if not isinstance(outcome, Measured):
        return redact(outcome.reason)
    parts = []
    levels = outcome.load.levels
    for slo, violation in zip(objectives.slos, objectives.constraints(record), strict=False):
        if violation > 0:
            found = slo.measured(objectives.worst(slo, levels))  # a level that was stopped has none
            told = "not measured" if found is None else f"{number_text(found)} ms"
            parts.append(f"{metric_title(slo.key)} {told}, limit {number_text(slo.limit_ms)} ms")
    stops = [f"{level.level} {level.stopped}" for level in levels if level.stopped]
    parts += stops
    if outcome.quality is not None and outcome.quality.verdict == QualityVerdict.FAILED:
        failed = [check.name for check in outcome.quality.checks if check.verdict == QualityVerdict.FAILED]
        parts.append("quality: " + (", ".join(failed) or "failed"))
    if objectives.values(record) is None and not stops:
        parts.append("an objective was not measured")
    return "; ".join(parts)


def quality_views(records: Sequence[TrialRecord], baseline: EngineConfig) -> tuple[QualityView, ...]:
    """The gate's verdicts, one per precision key in the order they were first seen."""
    found: dict[str, list[TrialRecord]] = {}
    for record in records:
        if isinstance(record.outcome, Measured) and record.outcome.quality is not None:
            found.setdefault(record.outcome.quality.precision_key, []).append(record)
    return tuple(_quality(key, group, baseline) for key, group in found.items())


def _quality(key: str, group: Sequence[TrialRecord], baseline: EngineConfig) -> QualityView:
    # The one with most checks speaks: later tiers add to earlier ones.
    reports = [one.outcome.quality for one in group if isinstance(one.outcome, Measured) and one.outcome.quality]
    report = max(reports, key=lambda one: len(one.checks))
    return QualityView(
        key=key,
        verdict=str(report.verdict),
        trials=tuple(record.number for record in group),
        changes=redact(_shared_changes(group, baseline)),
        checks=tuple(_check(check) for check in report.checks),
    )


def _shared_changes(group: Sequence[TrialRecord], baseline: EngineConfig) -> str:
    """What all trials of a precision change in the same way; the rest cannot have touched the answers."""
    shared = set(real_changes(group[0].config, baseline))
    for record in group[1:]:
        shared &= set(real_changes(record.config, baseline))
    ordered = sorted(shared, key=lambda change: change.name)
    return " ".join(f"{change.name}={value_text(change.after)}" for change in ordered) or "as the baseline"


def _check(check: QualityCheck) -> CheckView:
    if check.tier in (0, 3):  # holds or does not: a bar would mean nothing
        text = {"passed": "holds", "failed": "does not hold"}.get(str(check.verdict), "is open")
        return CheckView(check.name, True, text, 0.0, 0.0, 0.0, 0.0, str(check.verdict), redact(check.note))
    value, low, high = check.estimate.value, check.estimate.low, check.estimate.high
    limit, noise = check.limit, check.noise
    if check.name.startswith("agreement"):  # a share that must stay above its limit: its shortfall counts
        value, low, high = 1 - value, 1 - high, 1 - low
        limit, noise = 1 - limit, 1 - noise if noise > 0.5 else noise
    scale = limit if limit > 0 else 1.0
    text = f"{check.estimate.value:.3g} [{check.estimate.low:.3g}, {check.estimate.high:.3g}], limit {check.limit:g}"
    return CheckView(
        check.name,
        False,
        text,
        value / scale,
        low / scale,
        high / scale,
        noise / scale,
        str(check.verdict),
        redact(check.note),
    )
