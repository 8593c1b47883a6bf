"""A search without a model: change one or two settings of a measured good configuration, and say which."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from autotune.outcome import Proposal, TrialRecord
from autotune.search.front import front_of
from autotune.search.proposer import Setting, Situation
from autotune.search.screen import Point, Screen
from autotune.space.config import FrozenValue

KEPT = 0.5
"""Of the changed layouts, so many keep the limit of the whole engine; the others keep the replica's."""
MUTATIONS = 300
"""Mutations looked at in one call before a random draw is taken instead."""


class LocalStrategy:
    """Half of the parents are the best configuration under the limits, the others members of the front."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def suggest(self, situation: Situation) -> Proposal | None:
        rng = situation.rng
        parents = parents_of(situation.records, self._setting)
        if not parents:
            return self._setting.random_proposal(situation, "nothing good to change yet, so a random draw")
        for _ in range(MUTATIONS):
            parent = parents[0] if rng.random() < 0.5 else rng.choice(parents)
            point = mutate(self._setting.screen, dict(parent.proposal.point), rng, 1 if rng.random() < 0.5 else 2)
            candidate = self._setting.screen.candidate(point, situation.tried)
            if candidate.admitted:
                note = explain(dict(parent.proposal.point), dict(candidate.point), parent.number)
                return candidate.proposal("mutation", note)
        return self._setting.random_proposal(situation, "no unseen neighbour left, so a random draw")


def parents_of(records: Sequence[TrialRecord], setting: Setting) -> list[TrialRecord]:
    """Good measured points of the space: the best one first, then the feasible front; without those the least bad."""
    inside = [record for record in records if record.proposal.point and setting.objectives.values(record) is not None]
    if not inside:
        return []
    best = min(inside, key=setting.objectives.rank)
    return [best, *(record for record in front_of(inside, setting.objectives) if record is not best)]


def mutate(screen: Screen, point: Mapping[str, FrozenValue], rng: random.Random, count: int) -> Point:
    """Change `count` parameters: a ladder moves by one to three steps, a choice to any other value.

    A parameter that becomes active by a change gets a random value. A changed layout may keep the limit of the whole
    engine (`WholeLimit`), as one change.
    """
    changed = {**_missing(screen, point, rng), **point}
    movable = [parameter for parameter in screen.space.parameters if len(parameter.values) > 1]
    active = [parameter for parameter in movable if parameter.name in point] or movable
    for parameter in rng.sample(active, min(count, len(active))):
        values = list(parameter.values)
        if not parameter.ordered or changed[parameter.name] not in values:
            others = [value for value in values if value != changed[parameter.name]]
            changed[parameter.name] = rng.choice(others)
            continue
        index = values.index(changed[parameter.name])
        step = rng.choice((1, 1, 2, 3)) * rng.choice((-1, 1))
        moved = min(max(index + step, 0), len(values) - 1)
        changed[parameter.name] = values[moved if moved != index else index - (1 if step > 0 else -1)]
    if screen.whole is not None and rng.random() < KEPT:
        layout, sequences = screen.whole.layout.name, screen.whole.sequences.name
        if changed[layout] != point.get(layout) and changed[sequences] == point.get(sequences):
            changed[sequences] = screen.whole.kept(point, changed[layout])
    return changed


def explain(before: Mapping[str, FrozenValue], after: Mapping[str, FrozenValue], number: int) -> str:
    """What was changed on which trial, such as `trial 7 with max_num_seqs 256 → 384`."""
    changes = [
        f"{name} {_text(before, name)} → {_text(after, name)}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name, ...) != after.get(name, ...)
    ]
    return f"trial {number} with {', '.join(changes)}"


def _text(point: Mapping[str, FrozenValue], name: str) -> str:
    return str(point[name]) if name in point else "unset"


def _missing(screen: Screen, point: Mapping[str, FrozenValue], rng: random.Random) -> Point:
    """Random values of the parameters that a point does not set, for those that a change makes active."""
    return {one.name: rng.choice(one.values) for one in screen.space.parameters if one.name not in point}
