"""What an earlier study gives to a new one: measurements made under the same conditions, and what to try first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from autotune.host.fingerprint import HARD, Fingerprint, differences
from autotune.load.plan import plan_hashes
from autotune.outcome import Measured, TrialRecord
from autotune.search.objectives import TAKEN_OVER, Objectives
from autotune.search.reuse import Reuse, reuse
from autotune.space.config import EngineConfig
from autotune.space.space import SearchSpace
from autotune.spec.study import LoadSpec, StudySpec
from autotune.store import Store
from autotune.study import open_study

SAME = ("model", "revision", "engine.kind", "engine.python", "engine.env", "engine.simulate", "topology", "quality")
"""What two study files must share beside the fingerprint. Arguments of the engine are part of every configuration."""


@dataclass(frozen=True)
class Today:
    """The new study.

    Attributes:
        spec: its file.
        environment: fingerprint of this host, engine and model.
        placed: its load where a knee has placed it already.
    """

    spec: StudySpec
    environment: Fingerprint
    objectives: Objectives
    space: SearchSpace
    base: EngineConfig
    baseline: EngineConfig
    placed: LoadSpec | None = None

    @cached_property
    def plans(self) -> tuple[str, ...]:
        """Plan hash of every level of the load; empty where it is not placed yet."""
        load = self.placed if self.spec.load.knee is not None else self.spec.load
        return plan_hashes(load) if load is not None else ()

    def differs(self, record: TrialRecord) -> str:
        """In what the conditions of an earlier record differ, in a few words; empty where they are the same."""
        if not record.environment:
            return "its fingerprint is not known"
        then, now = dict(record.environment), dict(self.environment)
        changed = [name for name in HARD if then.get(name) != now.get(name)]
        if changed:
            return ", ".join(differences(_only(record.environment, changed), _only(self.environment, changed)))
        if not isinstance(record.outcome, Measured) or self.plans == _plans(record.outcome):
            return ""
        return "another load" if self.plans else "this study's load is placed by a knee that is not known yet"

    def differs_from(self, spec: str) -> str:
        """What in the file of an earlier study makes its measurements other ones; empty where nothing does."""
        before, now = json.loads(spec), json.loads(self.spec.model_dump_json())
        # Answers are compared with those of the baseline.
        keys = (*SAME, "baseline") if self.spec.quality.enabled else SAME
        return next((f"another {key}" for key in keys if _at(before, key) != _at(now, key)), "")


def take_over(like: Path, store: Store, today: Today, *, anew: str = "") -> Reuse:
    """Put what an earlier study measured under the same conditions into a new study's store.

    A study that has begun already takes over nothing more.

    Args:
        like: file of the earlier study.
        store: of the new study.
        today: the new study.
        anew: why nothing is taken over although the conditions are the same; what was good is still tried first.

    Raises:
        SpecError: the earlier study's file is wrong, or it has never been run.
    """
    older = open_study(like).existing_store()
    try:
        old, head = older.history(), older.head()
    finally:
        older.close()
    file_differs = today.differs_from(head.spec) if head is not None else "its file is not known"
    given = reuse(
        old,
        objectives=today.objectives,
        space=today.space,
        base=today.base,
        differs=lambda record: anew or file_differs or today.differs(record),
        source=like.stem,
        anew=(today.baseline.hash,),
    )
    begun = store.history()
    if begun:
        count = sum(record.proposal.origin == TAKEN_OVER for record in begun)
        return replace(given, taken=(), sentence=f"{count} measurements were taken over when this study began")
    for number, record in enumerate(given.taken, start=store.next_number()):
        store.add(replace(record, number=number))
    return given


def _plans(outcome: Measured) -> tuple[str, ...]:
    return tuple(level.plan_hash for level in outcome.load.levels)


def _only(environment: Fingerprint, names: Sequence[str]) -> Fingerprint:
    return tuple(item for item in environment if item[0] in names)


def _at(spec: object, key: str) -> object:
    for part in key.split("."):
        spec = spec.get(part) if isinstance(spec, dict) else None
    return spec
