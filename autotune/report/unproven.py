"""What the confirmation found of the finalists where it proved nothing, so that a reader sees why."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.outcome import TrialRecord
from autotune.report.comparison import Verdict, columns_of
from autotune.report.wording import count_text, lower_first, ratio_text
from autotune.result import rivals_of
from autotune.search.confirm import ArmResult, analyse, rounds_of
from autotune.search.drift import drift_of
from autotune.search.objectives import Objectives, searched
from autotune.spec.study import StudySpec


def unproven(
    verdict: Verdict, records: Sequence[TrialRecord], objectives: Objectives, spec: StudySpec
) -> tuple[str, ...]:
    """A sentence about every finalist and rival of a study that ends with what runs today; empty for all others."""
    rounds = rounds_of(records)
    if not verdict.final or verdict.proven or verdict.baseline is None or not rounds:
        return ()
    extra = drift_of(records, objectives).extra_spread
    found = analyse(rounds, objectives, verdict.baseline.config, margin=spec.confirm.margin, extra_spread=extra)
    names = {record.config.hash: f"Finalist, trial {record.number}" for record in reversed(searched(records))}
    names |= {config.hash: name for name, config in rivals_of(spec).items()}
    return tuple(f"{names.get(arm.config.hash, 'Finalist')}: {_said(arm, objectives)}" for arm in found.arms)


def _said(arm: ArmResult, objectives: Objectives) -> str:
    titles = {column.label: lower_first(column.title) for column in columns_of(objectives)}
    ratios = [f"{titles[one.label]} {ratio_text(one.value, one.low, one.high)}" for one in arm.ratios]
    rounds = max((one.rounds for one in arm.ratios), default=0)
    over = f"{count_text(rounds, 'round')} of fresh starts{', too few for an interval' if rounds == 1 else ''}"
    text = f"{', '.join(ratios)} of the baseline over {over}" if ratios else "not measured"
    if arm.problems:
        return f"{text}; {arm.problems[0]}."
    words = {"tie": "no interval is beyond the margin", "worse": "worse in an objective, proven better in none"}
    return f"{text}; {words.get(arm.verdict, 'better in one objective, worse in another')}."
