"""What a study found: the values behind `autotune run`'s last lines, the report and `import autotune`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from autotune.outcome import Measured, TrialRecord
from autotune.search.confirm import Confirmation
from autotune.search.front import front_of
from autotune.search.objectives import Objectives
from autotune.space.config import EngineConfig
from autotune.spec.study import StudySpec

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to run from now on.

    Attributes:
        config: the recommended configuration; the baseline's own where nothing better was proven.
        baseline: what it is compared with.
        trial: number of the trial that found it.
        proven: the confirmation claims an improvement.
        sentence: the claim in one sentence, with its interval.
        gains: (objective label, ratio, low, high) against the baseline, from the confirmation alone.
        quality: one sentence of evidence on quality.
    """

    config: EngineConfig
    baseline: EngineConfig
    trial: int
    proven: bool
    sentence: str
    gains: tuple[tuple[str, float, float, float], ...] = ()
    quality: str = ""
    effects: tuple[tuple[str, str], ...] = ()
    """(setting, what it is worth) from the undo tests."""
    against: tuple[tuple[str, str], ...] = ()
    """(name, what is recommended over it) for each configuration of `confirm.against`."""


FINAL = ("recommendation", "final")
"""Kind and key of the document that holds the recommendation."""
ENDED = ("end", "search")
"""Kind and key of the document that says why the search ended."""
NO_RECOMMENDATION = "null"
"""What is kept where a study has none, or has one no more since it goes on."""
_RECOMMENDATION: TypeAdapter[Recommendation] = TypeAdapter(Recommendation)


def rivals_of(spec: StudySpec) -> dict[str, EngineConfig]:
    """What is proven beside the finalists (`confirm.against`), complete, by name."""
    given = EngineConfig.of(dict(spec.engine.args))
    return {name: given.merged(dict(one.args), one.env) for name, one in spec.confirm.against.items()}


def busy_seconds(records: Iterable[TrialRecord]) -> float:
    """Seconds on the clock in which at least one trial ran: trials at the same time count once."""
    total, until = 0.0, 0.0
    for record in sorted(records, key=lambda one: one.started_at):
        end = record.started_at + record.seconds
        total += max(end - max(until, record.started_at), 0.0)
        until = max(until, end)
    return total


@dataclass(frozen=True)
class StudyResult:
    """A finished (or interrupted) study.

    Attributes:
        name: the study's name.
        folder: where its files are.
        objectives: what was optimised.
        records: every trial in order.
        confirmation: the proof, or None where none was asked for or it has not run.
        recommendation: what to run, or None where not even the baseline was measured.
        reason: why the search ended.
        summary: sentences for people.
    """

    name: str
    folder: Path
    objectives: Objectives
    records: tuple[TrialRecord, ...]
    confirmation: Confirmation | None
    recommendation: Recommendation | None
    reason: str
    summary: tuple[str, ...]

    @property
    def front(self) -> tuple[TrialRecord, ...]:
        """The feasible configurations that no other one beats in every objective."""
        return tuple(front_of(self.records, self.objectives))

    def frame(self) -> pd.DataFrame:
        """Every trial as a row: number, origin, outcome, objectives, and one column per setting."""
        return _frame(self.records, self.objectives)

    def front_frame(self) -> pd.DataFrame:
        """The front as a frame, best first objective on top."""
        frame = _frame(self.front, self.objectives)
        first = self.objectives.labels[0]
        return frame.sort_values(first, ascending=self.objectives.directions[0] == "minimize").reset_index(drop=True)

    def to_json(self) -> str:
        """The recommendation as JSON."""
        if self.recommendation is None:
            return NO_RECOMMENDATION
        return _RECOMMENDATION.dump_json(self.recommendation).decode()


def recommendation_from_json(text: str) -> Recommendation | None:
    """The inverse of `StudyResult.to_json`."""
    return None if text == NO_RECOMMENDATION else _RECOMMENDATION.validate_json(text)


def _frame(records: tuple[TrialRecord, ...], objectives: Objectives) -> pd.DataFrame:
    import pandas as pd  # half a second that most commands need not spend

    rows = []
    for record in records:
        values = objectives.values(record) or tuple(float("nan") for _ in objectives.items)
        rows.append(
            {
                "trial": record.number,
                "origin": record.proposal.origin,
                "outcome": record.outcome.kind,
                "cause": "" if isinstance(record.outcome, Measured) else record.outcome.cause,
                "feasible": objectives.feasible(record),
                **dict(zip(objectives.labels, values, strict=True)),
                **dict(record.config.args),
            }
        )
    columns = ["trial", "origin", "outcome", "cause", "feasible", *objectives.labels]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=columns)
