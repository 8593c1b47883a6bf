"""Records of an earlier study: taken over where they were measured under the same conditions, else only tried again.

What is taken over steers the search and nothing else. It is never part of a claim: finalists and baseline are measured
afresh, and so is the baseline that everything is compared with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from autotune.outcome import Proposal, TrialRecord
from autotune.search.front import front_of
from autotune.search.objectives import REPEATS, TAKEN_OVER, Objectives, searched
from autotune.space.config import EngineConfig, FrozenValue
from autotune.space.experts import Expert
from autotune.space.space import SearchSpace

WARM = 8
"""So many configurations of an earlier study are tried first."""
Differs: TypeAlias = Callable[[TrialRecord], str]
"""In what the conditions of a record differ from today's, in a few words; empty where they are the same."""


@dataclass(frozen=True)
class Reuse:
    """What an earlier study gives to a new one.

    Attributes:
        taken: records to store as they are (origin `warm`); the conditions were the same. They cost this study nothing.
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
    differs: Differs,
    source: str,
    anew: Collection[str] = (),
) -> Reuse:
    """Judge every record of an earlier study.

    Args:
        old: its records.
        objectives: of the new study.
        space: of the new study.
        base: arguments that every trial of the new study gets.
        differs: what separates a record's conditions from those of the new study.
        source: name of the earlier study, for notes.
        anew: hashes of configurations that are measured again whatever is known of them, such as the baseline.
    """
    taken: list[TrialRecord] = []
    reasons: Counter[str] = Counter()
    for record in searched(old):
        if record.config.hash in anew:
            continue
        point = space.point_of(record.config)
        if point is None or space.violations(point):
            reasons["not in this study's space"] += 1
        elif space.config(point, base).hash != record.config.hash:
            reasons["what every trial gets (engine.args, space.fixed) was another"] += 1
        elif not objectives.complete(record):
            reasons["an objective or a limit was not measured"] += 1
        elif reason := differs(record):
            reasons[reason] += 1
        else:
            taken.append(_taken(record, point, source))
    hashes = {record.config.hash for record in taken}
    rest = [record for record in old if record.config.hash not in anew]
    warm = tuple(_warm(rest, objectives, space, base, hashes, source))
    return Reuse(tuple(taken), warm, _sentence(source, len(taken), len(warm), reasons))


def _sentence(source: str, taken: int, warm: int, reasons: Counter[str]) -> str:
    count = f"{taken} measurement{'s' if taken != 1 else ''} taken over from {source}"
    tried = f"{warm} of its configurations tried again first"
    left = "; ".join(f"{number} not taken over: {reason}" for reason, number in reasons.most_common(3))
    return ", ".join([count, tried]) + (f" ({left})" if left else "")


def _taken(record: TrialRecord, point: Mapping[str, FrozenValue], source: str) -> TrialRecord:
    note = f"measured in {source}, trial {record.number}"
    proposal = Proposal(record.config, tuple(sorted(point.items())), TAKEN_OVER, note)
    # Its seconds were spent by the earlier study, and no engine of this one runs because of it.
    return replace(record, proposal=proposal, seconds=0.0, stage_seconds=(), phases=(), restarted=False, attempt=1)


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
