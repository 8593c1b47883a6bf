"""What is recommended, against what runs today."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.load.report import Estimate
from autotune.outcome import TrialRecord
from autotune.report.trials import objective_estimates
from autotune.report.values import Column, GainView
from autotune.report.wording import metric_title, metric_unit, value_text
from autotune.result import Recommendation
from autotune.search.front import baseline_of, recommend
from autotune.search.objectives import Objective, Objectives
from autotune.space.config import EngineConfig
from autotune.space.defaults import real_changes, without_spelt_out


@dataclass(frozen=True)
class Verdict:
    """The recommended configuration and where its figures come from.

    Attributes:
        config: what to run; None where nothing was measured.
        chosen: the trial with its figures, or None.
        baseline: the trial with the baseline's figures, or None.
        proven: confirmed on fresh starts.
        final: the study has ended with this recommendation.
        sentence: the claim.
        quality: one sentence on quality; may be empty.
        gains: confirmed ratios by objective label.
    """

    config: EngineConfig | None
    chosen: TrialRecord | None
    baseline: TrialRecord | None
    proven: bool
    final: bool
    sentence: str
    quality: str
    gains: tuple[tuple[str, float, float, float], ...]


def verdict_of(
    records: Sequence[TrialRecord], objectives: Objectives, recommendation: Recommendation | None
) -> Verdict:
    """The study's recommendation, or what the search suggests so far."""
    baseline = baseline_of(records)
    if recommendation is None:
        found = recommend(records, objectives)
        config = found.best.config if found.best else None
        return Verdict(config, found.best, baseline, False, False, found.sentence, "", ())
    chosen = _trial_of(records, recommendation)
    return Verdict(
        recommendation.config, chosen, baseline, recommendation.proven, True, _sentence(recommendation),
        recommendation.quality, recommendation.gains,
    )  # fmt: skip


def _sentence(recommendation: Recommendation) -> str:
    """The claim, and what the winner is over the configurations that the study names to compare with."""
    return "; ".join([recommendation.sentence, *(f"over {name}: {said}" for name, said in recommendation.against)])


def _trial_of(records: Sequence[TrialRecord], recommendation: Recommendation) -> TrialRecord | None:
    by_number = next((one for one in records if one.number == recommendation.trial), None)
    if by_number is not None and without_spelt_out(by_number.config) == without_spelt_out(recommendation.config):
        return by_number
    # A minimised configuration was measured under another number, or never by itself.
    wanted = without_spelt_out(recommendation.config)
    same = [one for one in records if one.outcome.kind == "measured" and without_spelt_out(one.config) == wanted]
    return same[-1] if same else by_number


def columns_of(objectives: Objectives) -> tuple[Column, ...]:
    """The objectives with titles and units."""
    return tuple(Column(item.label, _title(item), _unit(item), item.maximize) for item in objectives.items)


def _title(item: Objective) -> str:
    if item.key == "capacity":
        return "Capacity"
    places = {
        "last": "",
        "first": " at the first level",
        "best": " at the best level",
        "area": ", mean over the load",
    }
    level = places.get(str(item.level), f" at {item.level}")
    return metric_title(item.key) + (" per GPU" if item.per_gpu else "") + level


def _unit(item: Objective) -> str:
    return metric_unit(item.key)


def gain_views(verdict: Verdict, objectives: Objectives) -> tuple[GainView, ...]:
    """One row per objective."""
    today = objective_estimates(verdict.baseline, objectives) if verdict.baseline else ()
    found = objective_estimates(verdict.chosen, objectives) if verdict.chosen else ()
    proven = {label: (ratio, low, high) for label, ratio, low, high in verdict.gains}
    rows = []
    for index, column in enumerate(columns_of(objectives)):
        before = today[index] if today else None
        after = found[index] if found else None
        if column.label in proven:
            ratio, low, high = proven[column.label]
            rows.append(GainView(column, before, after, ratio, low, high, True))
        else:
            rows.append(GainView(column, before, after, _ratio(before, after, column.maximize), None, None, False))
    return tuple(rows)


def _ratio(before: Estimate | None, after: Estimate | None, maximize: bool) -> float | None:
    if before is None or after is None or before.value <= 0 or after.value <= 0:
        return None
    return after.value / before.value if maximize else before.value / after.value


def change_rows(verdict: Verdict, baseline: EngineConfig) -> tuple[tuple[str, str, str], ...]:
    """(setting, before, after) of everything that the recommendation changes."""
    if verdict.config is None:
        return ()
    changes = real_changes(verdict.config, baseline)
    return tuple((change.name, value_text(change.before), value_text(change.after)) for change in changes)
