"""Records of an earlier study: taken over where they were measured under the same conditions, else only tried again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.outcome import Measured, Proposal, TrialRecord
from autotune.search.front import front_of
from autotune.search.objectives import REPEATS, Objectives, searched
from autotune.space.config import EngineConfig, FrozenValue
from autotune.space.experts import Expert
from autotune.space.space import SearchSpace

WARM = 8
"""So many configurations of an earlier study are tried first."""


@dataclass(frozen=True)
class Reuse:
    """What an earlier study gives to a new one.

    Attributes:
        taken: records to store as they are (origin `warm`); the conditions were the same.
        warm: points to propose right after the baseline; the conditions differ, or the record was not complete.
        sentence: for the reader.
    """

    taken: tuple[TrialRecord, ...]
    warm: tuple[Expert, ...]
    sentence: str


def reuse(
    old: Sequence[TrialRecord],
    *,
    objectives: Objectives,
    space: SearchSpace,
    base: EngineConfig,
    environment: Mapping[str, str],
    load: str,
    source: str,
) -> Reuse:
    """Judge every record of an earlier study.

    Args:
        old: its records.
        objectives: of the new study.
        space: of the new study.
        base: arguments that every trial of the new study gets.
        environment: fingerprint of the new study (host, card, driver, engine, model).
        load: plan hash of the new study's load (lengths and arrival times); empty where it is not known yet.
        source: name of the earlier study, for notes.
    """
    taken: list[TrialRecord] = []
    for record in searched(old):
        if not _same_conditions(record, environment, load):
            continue
        point = space.point_of(record.config)
        inside = point is not None and space.config(point, base).hash == record.config.hash
        if inside and point is not None and not space.violations(point):
            taken.append(_taken(record, point, source))
    hashes = {record.config.hash for record in taken}
    warm = tuple(_warm(old, objectives, space, base, hashes, source))
    count = f"{len(taken)} measurements taken over from {source}"
    return Reuse(tuple(taken), warm, f"{count}, {len(warm)} of its configurations tried again first")


def _same_conditions(record: TrialRecord, environment: Mapping[str, str], load: str) -> bool:
    """The same fingerprint and, for a measurement, the same load; unknown is not the same."""
    if not record.environment or dict(record.environment) != dict(environment):
        return False
    if isinstance(record.outcome, Measured):
        plans = {level.plan_hash for level in record.outcome.load.levels}
        return load != "" and plans == {load}
    return True


def _taken(record: TrialRecord, point: Mapping[str, FrozenValue], source: str) -> TrialRecord:
    origin = record.proposal.origin if record.proposal.origin == "baseline" else "warm"
    note = f"measured in {source}, trial {record.number}"
    return replace(record, proposal=Proposal(record.config, tuple(sorted(point.items())), origin, note))


def _warm(
    old: Sequence[TrialRecord],
    objectives: Objectives,
    space: SearchSpace,
    base: EngineConfig,
    known: set[str],
    source: str,
) -> list[Expert]:
    """The feasible front of the earlier study first, then its next best, snapped into the new space."""
    feasible = [one for one in searched(old) if objectives.feasible(one) and one.proposal.origin not in REPEATS]
    front = front_of(feasible, objectives)
    ranked = [*front, *sorted((one for one in feasible if one not in front), key=objectives.rank)]
    found: dict[str, Expert] = {}
    for record in ranked:
        point = space.point_of(record.config)
        if point is None or space.violations(point):
            continue
        config = space.config(point, base)
        if config.hash not in known and config.hash not in found:
            found[config.hash] = Expert(point, f"{source}, trial {record.number}", "good in an earlier study", source)
    return list(found.values())[:WARM]
