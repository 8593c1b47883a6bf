"""Failed trials by class, with advice and the end of one log each."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path

from autotune.engine.failures import read_log
from autotune.engine.redaction import redact
from autotune.outcome import Broken, Infeasible, Measured, TrialRecord
from autotune.report.trials import standing_of, trial_folder
from autotune.report.values import FailureView, RefusedView
from autotune.search.account import SpaceAccount
from autotune.search.objectives import Objectives

EXCERPT_LINES = 16
LINE_LENGTH = 300
MOST_EXCERPTS = 12
"""Logs that are quoted; of further classes only the reason is given."""


def failure_views(
    records: Sequence[TrialRecord], objectives: Objectives, home: Path | None = None
) -> tuple[FailureView, ...]:
    """Failures by class, the one that cost most GPU time first; `home` is the study's folder with the logs."""
    groups: dict[str, list[TrialRecord]] = {}
    for record in records:
        if not isinstance(record.outcome, Measured):
            groups.setdefault(record.outcome.cause, []).append(record)
    ordered = sorted(groups.items(), key=lambda item: (-sum(one.seconds for one in item[1]), item[0]))
    return tuple(
        _view(cause, group, objectives, home, quoted=place < MOST_EXCERPTS)
        for place, (cause, group) in enumerate(ordered)
    )


def refused_views(account: SpaceAccount | None) -> tuple[RefusedView, ...]:
    """What was refused before a start by cause, most first; nothing where nobody counted."""
    if account is None:
        return ()
    examples = [(cause, count, account.example(cause)) for cause, count in account.causes]
    return tuple(RefusedView(cause, count, redact(one.reason), redact(one.advice)) for cause, count, one in examples)


def _view(
    cause: str, group: Sequence[TrialRecord], objectives: Objectives, home: Path | None, *, quoted: bool
) -> FailureView:
    first = group[0].outcome
    reason = "" if isinstance(first, Measured) else redact(first.reason)
    return FailureView(
        cause=cause,
        standing=standing_of(group[0], objectives, set()),
        trials=tuple(record.number for record in group),
        seconds=sum(record.seconds for record in group),
        reason=reason,
        advice=_advice(group),
        excerpt=next((text for record in group if quoted and (text := log_end(trial_folder(record, home)))), ""),
    )


def _advice(group: Sequence[TrialRecord]) -> tuple[str, ...]:
    """Every sentence of advice once; for a fault of ours what follows for the study."""
    found: dict[str, None] = {}
    for record in group:
        outcome = record.outcome
        if isinstance(outcome, Infeasible):
            for advice in outcome.advice:
                found.setdefault(redact(advice.text))
            for name, value in outcome.quarantine:
                found.setdefault(redact(f"{name}={value} fails whatever else is set; the study does not try it again"))
        elif isinstance(outcome, Broken) and outcome.stop:
            found.setdefault("every other trial would fail as well: repair this and run the study again")
    return tuple(found)


def log_end(folder: Path | None) -> str:
    """The last lines of a trial's engine log, redacted and cut to a readable length; empty where there is none."""
    if folder is None:
        return ""
    try:
        lines = deque(read_log(folder / "engine.log"), maxlen=EXCERPT_LINES)
    except OSError:
        return ""
    return "\n".join(redact(line)[:LINE_LENGTH] for line in lines)
