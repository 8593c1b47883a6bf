"""Puts the rooms together for one study: the only place that knows which implementation stands behind each protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from autotune.engine.protocol import Engine
from autotune.search.objectives import Objectives
from autotune.search.proposer import Proposer
from autotune.search.view import OptunaView
from autotune.space.config import EngineConfig
from autotune.space.space import SearchSpace
from autotune.spec.study import StudySpec
from autotune.store import Store
from autotune.study import Study
from autotune.trial import Preflight, QualityGate


@dataclass(frozen=True)
class StudyParts:
    """Everything that one study is made of."""

    study: Study
    spec: StudySpec
    folder: Path
    store: Store
    space: SearchSpace
    objectives: Objectives
    baseline: EngineConfig
    engine: Engine
    preflight: Preflight
    gate: QualityGate | None
    proposer: Proposer
    view: OptunaView
    gpus: int
    vocabulary: int
    environment: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    live: frozenset[str] = field(default=frozenset())
