"""What must hold for a study whose space contains a variant that answers worse than the baseline."""

from __future__ import annotations

from autotune.outcome import Measured, TrialRecord
from autotune.quality.report import QualityVerdict
from autotune.result import StudyResult
from autotune.space.config import FrozenValue


def with_setting(result: StudyResult, name: str, value: FrozenValue) -> list[TrialRecord]:
    """The trials of the variant."""
    return [record for record in result.records if record.config.get(name) == value]


def check_never_recommended(result: StudyResult, name: str, value: FrozenValue) -> TrialRecord:
    """Measured once, failed by the gate, and from then on left alone; the one trial of the variant.

    Args:
        result: the finished study.
        name: the setting that damages the answers.
        value: its damaging value.
    """
    (damaged,) = with_setting(result, name, value)
    outcome = damaged.outcome
    assert isinstance(outcome, Measured), outcome
    assert outcome.quality is not None
    assert outcome.quality.verdict is QualityVerdict.FAILED
    assert outcome.quality.violation > 0
    assert outcome.quarantine == ((name, value),)
    assert not result.objectives.feasible(damaged)
    assert result.front, "the baseline at least"
    assert damaged.number not in {record.number for record in result.front}

    confirmed = [record for record in result.records if record.proposal.origin == "confirm"]
    assert confirmed, "there was a sound finalist to confirm"
    assert result.confirmation is not None
    compared = {arm.config.hash for arm in result.confirmation.arms}
    assert compared
    assert damaged.config.hash not in compared
    assert result.recommendation is not None
    assert result.recommendation.config.get(name) != value
    return damaged
