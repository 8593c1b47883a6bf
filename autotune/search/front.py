"""The feasible Pareto front, its hypervolume and its knee. Everything is minimised inside this module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.outcome import TrialRecord
from autotune.search.objectives import Objectives, searched

Array = NDArray[np.float64]


def dominates(first: Sequence[float], second: Sequence[float]) -> bool:
    """`first` is nowhere worse and somewhere better (losses: smaller is better)."""
    return all(a <= b for a, b in zip(first, second, strict=True)) and any(
        a < b for a, b in zip(first, second, strict=True)
    )


def non_dominated(losses: Array) -> NDArray[np.bool_]:
    """Mask of the rows that no other row dominates; of equal rows the first one stays."""
    count, width = losses.shape
    keep = np.zeros(count, dtype=np.bool_)
    # In this order whoever dominates a row stands before it, and of equal rows the first one comes first.
    order = np.lexsort(losses.T[::-1])
    if width == 2:  # most studies: a row stays where its second value is below all before it
        lowest = np.minimum.accumulate(losses[order, 1])
        keep[order] = losses[order, 1] < np.concatenate([[np.inf], lowest[:-1]])
        return keep
    front = np.empty((0, width))
    for index in order:
        if not np.any(np.all(front <= losses[index], axis=1)):
            keep[index] = True
            front = np.vstack([front, losses[index]])
    return keep


def hypervolume(losses: Array, reference: Sequence[float] | Array) -> float:
    """Volume that the rows dominate below `reference`; exact, in any number of dimensions (fast up to 4)."""
    ref = np.asarray(reference, dtype=np.float64)
    rows = np.asarray(losses, dtype=np.float64).reshape(-1, len(ref))
    rows = rows[np.all(rows < ref, axis=1)]
    if len(rows) == 0:
        return 0.0
    return _volume(rows[non_dominated(rows)], ref)


def _volume(rows: Array, ref: Array) -> float:
    """Slices along the last objective: each slab has the volume of the rows below it in one dimension less."""
    if rows.shape[1] == 1:
        return float(ref[0] - rows[:, 0].min())
    if rows.shape[1] == 2:
        order = rows[np.argsort(rows[:, 0])]
        lowest = np.minimum.accumulate(order[:, 1])
        right = np.append(order[1:, 0], ref[0])
        return float(np.sum((right - order[:, 0]) * (ref[1] - lowest)))
    order = rows[np.argsort(rows[:, -1])]
    tops = np.append(order[1:, -1], ref[-1])
    total = 0.0
    for index in range(len(order)):
        height = tops[index] - order[index, -1]
        if height > 0:
            slab = order[: index + 1, :-1]
            total += height * _volume(slab[non_dominated(slab)], ref[:-1])
    return float(total)


def front_of(records: Sequence[TrialRecord], objectives: Objectives) -> list[TrialRecord]:
    """The feasible records that no feasible record dominates, best first objective first."""
    feasible = [record for record in searched(records) if objectives.feasible(record)]
    if not feasible:
        return []
    rows = losses_of(feasible, objectives)
    kept = [record for record, keep in zip(feasible, non_dominated(rows), strict=True) if keep]
    return sorted(kept, key=objectives.rank)


def losses_of(records: Sequence[TrialRecord], objectives: Objectives) -> Array:
    """One row of model losses (logarithms) per record; all records must be measured."""
    rows = [objectives.model_losses(values) for record in records if (values := objectives.values(record)) is not None]
    return np.asarray(rows, dtype=np.float64).reshape(-1, len(objectives.items))


def reference_of(rows: Array, margin: float = 0.1) -> Array:
    """A point a little worse than the worst row in every objective; `margin` is a share of the spread."""
    worst, best = rows.max(axis=0), rows.min(axis=0)
    return np.asarray(worst + margin * np.maximum(worst - best, 1e-3), dtype=np.float64)


def knee_of(front: Sequence[TrialRecord], objectives: Objectives) -> TrialRecord | None:
    """The member that lies farthest from the line between the ends, towards better; None for fewer than three.

    With logarithms scaled to the front's own extent, in any number of objectives: the smallest sum of scaled losses.
    """
    if len(front) < 3 or len(objectives.items) < 2:
        return None
    rows = losses_of(front, objectives)
    extent = np.maximum(rows.max(axis=0) - rows.min(axis=0), 1e-12)
    sums = ((rows - rows.min(axis=0)) / extent).sum(axis=1)
    return front[int(np.argmin(sums))]


def feasible_hypervolume(
    records: Sequence[TrialRecord], objectives: Objectives, reference: Sequence[float] | Array
) -> float:
    """Hypervolume of the feasible front in logarithms below `reference`."""
    front = front_of(records, objectives)
    return hypervolume(losses_of(front, objectives), reference) if front else 0.0


@dataclass(frozen=True)
class Recommended:
    """What a search suggests before anything is confirmed.

    Attributes:
        front: feasible non-dominated records, best first objective first.
        best: the record that is best in the first objective under all limits; None where nothing is feasible.
        knee: the compromise in the middle of the front, or None.
        baseline: the record of what runs today, or None before it was measured.
        sentence: for the reader.
    """

    front: tuple[TrialRecord, ...]
    best: TrialRecord | None
    knee: TrialRecord | None
    baseline: TrialRecord | None
    sentence: str


def recommend(records: Sequence[TrialRecord], objectives: Objectives) -> Recommended:
    """The front, its best member in the first objective and its knee, from the search's own measurements."""
    front = tuple(front_of(records, objectives))
    baseline = baseline_of(records)
    best = front[0] if front else None
    return Recommended(front, best, knee_of(front, objectives), baseline, _sentence(best, baseline, objectives))


def baseline_of(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """What runs today: its measurement, or its failure where it was never measured; the latest, since it may change."""
    found = [one for one in records if one.proposal.origin == "baseline" and one.outcome.learn]
    return max(found, key=lambda one: (one.outcome.kind == "measured", one.number), default=None)


def _sentence(best: TrialRecord | None, baseline: TrialRecord | None, objectives: Objectives) -> str:
    if best is None:
        return "no configuration held all limits"
    found = objectives.values(best)
    today = objectives.values(baseline) if baseline is not None else None
    if baseline is not None and best.config.hash == baseline.config.hash:
        return "nothing better than what you run today was found"
    if found is None or today is None or today[0] <= 0:
        return f"trial {best.number} is the best found; there is no baseline to compare it with"
    ratio = found[0] / today[0]
    return f"trial {best.number} measured x{ratio:.2f} of today's {objectives.items[0].label}; not confirmed yet"
