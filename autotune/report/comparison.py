"""What is recommended, against what runs today."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.load.report import Estimate
from autotune.outcome import TrialRecord
from autotune.report.proof import over_starts, proof_of
from autotune.report.trials import objective_estimates
from autotune.report.values import ChangeView, Column, GainView
from autotune.report.wording import lower_first, metric_title, metric_unit, value_text
from autotune.result import Recommendation
from autotune.search.front import baseline_of, recommend
from autotune.search.objectives import Objective, Objectives
from autotune.space.config import EngineConfig
from autotune.space.defaults import real_changes, without_spelt_out
from autotune.space.layout import Layout


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
        proofs: fresh starts of the baseline and of the winner; both or neither.
        effects: (setting of the winner, what it is worth) from the undo tests.
    """

    config: EngineConfig | None
    chosen: TrialRecord | None
    baseline: TrialRecord | None
    proven: bool
    final: bool
    sentence: str
    quality: str
    gains: tuple[tuple[str, float, float, float], ...]
    proofs: tuple[tuple[TrialRecord, ...], tuple[TrialRecord, ...]] | None = None
    effects: tuple[tuple[str, str], ...] = ()


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
        recommendation.quality, recommendation.gains, _proofs(records, recommendation), recommendation.effects,
    )  # fmt: skip


def _proofs(
    records: Sequence[TrialRecord], recommendation: Recommendation
) -> tuple[tuple[TrialRecord, ...], tuple[TrialRecord, ...]] | None:
    # Ratios are the winner's, before settings without effect were left out, so figures are its own as well.
    winner = next((one.config for one in records if one.number == recommendation.trial), recommendation.config)
    today, found = proof_of(records, recommendation.baseline), proof_of(records, winner)
    return (today, found) if today and found else None


def _sentence(recommendation: Recommendation) -> str:
    """The claim, and what the winner is over the configurations that the study names to compare with."""
    if not recommendation.proven:  # then `unproven` has a sentence about each of them
        return recommendation.sentence
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
    if verdict.proofs is not None:
        today, found = (_together(starts, objectives) for starts in verdict.proofs)
    else:
        today = objective_estimates(verdict.baseline, objectives) if verdict.baseline else ()
        found = objective_estimates(verdict.chosen, objectives) if verdict.chosen else ()
    proven = {label: (ratio, low, high) for label, ratio, low, high in verdict.gains}
    starts = len(verdict.proofs[1]) if verdict.proofs is not None else 0
    rows = []
    for index, column in enumerate(columns_of(objectives)):
        before = today[index] if today else None
        after = found[index] if found else None
        if column.label in proven:
            ratio, low, high = proven[column.label]
            rows.append(GainView(column, before, after, ratio, low, high, True, starts))
        else:
            seen = _ratio(before, after, column.maximize)
            rows.append(GainView(column, before, after, seen, None, None, False, starts))
    return tuple(rows)


def _together(starts: Sequence[TrialRecord], objectives: Objectives) -> tuple[Estimate, ...]:
    rows = [row for one in starts if (row := objective_estimates(one, objectives))]
    return tuple(over_starts(column) for column in zip(*rows, strict=True))


def _ratio(before: Estimate | None, after: Estimate | None, maximize: bool) -> float | None:
    if before is None or after is None or before.value <= 0 or after.value <= 0:
        return None
    return after.value / before.value if maximize else before.value / after.value


def change_rows(verdict: Verdict, baseline: EngineConfig, objectives: Objectives) -> tuple[ChangeView, ...]:
    """Everything that the recommendation changes, each with what it is worth where that was measured."""
    if verdict.config is None:
        return ()
    worth = dict(_worths(verdict, objectives))
    sizes = frozenset(Layout().args)  # undone together, as `layout`
    return tuple(
        ChangeView(
            change.name,
            value_text(change.before),
            value_text(change.after),
            worth.get("layout" if change.name in sizes else change.name, ""),
        )
        for change in real_changes(verdict.config, baseline)
    )


def left_out(verdict: Verdict, changes: Sequence[ChangeView], objectives: Objectives) -> tuple[str, ...]:
    """Settings of the winner that the recommendation goes without, a sentence each."""
    kept = {change.name for change in changes} | ({"layout"} if _has_sizes(changes) else set())
    return tuple(f"{name} is left out: {said}" for name, said in _worths(verdict, objectives) if name not in kept)


def _has_sizes(changes: Sequence[ChangeView]) -> bool:
    return not {change.name for change in changes}.isdisjoint(Layout().args)


def _worths(verdict: Verdict, objectives: Objectives) -> Iterator[tuple[str, str]]:
    for name, sentence in verdict.effects:
        yield name, in_words(sentence, objectives)


def in_words(sentence: str, objectives: Objectives) -> str:
    """A sentence with the objectives' titles in place of their labels."""
    for column in columns_of(objectives):
        sentence = sentence.replace(column.label, lower_first(column.title))
    return sentence
