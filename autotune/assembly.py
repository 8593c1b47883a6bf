"""Puts the rooms together for one study: the only place that knows which implementation stands behind each protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from autotune.decision import Rules
from autotune.engine import cpu_setup
from autotune.engine.live_scheduler import SharedFileFactory
from autotune.engine.process import STOP_GRACE
from autotune.engine.protocol import Engine, Lease
from autotune.engine.registry import create_engine
from autotune.engine.standby import Standby
from autotune.events import Observer
from autotune.host.leases import leased
from autotune.load.measure import LoadClient
from autotune.outcome import Infeasible
from autotune.preflight.model import ModelFacts, read_model
from autotune.result import StudyResult
from autotune.run import StudyRun
from autotune.search.objectives import Objectives
from autotune.search.proposer import Proposer, create_proposer
from autotune.space.argv import to_argv
from autotune.space.catalogue import SpaceContext, load_space
from autotune.space.config import EngineConfig
from autotune.space.experts import experts
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
    rules: Rules
    engine: Engine
    plain_engine: Engine
    """Starts engines without our scheduler class: what is confirmed is what will be deployed."""
    standby: Standby
    preflight: Preflight
    gate: QualityGate | None
    proposer: Proposer
    vocabulary: int
    lease_gpus: int = 0
    """Real GPUs that one bench leases."""
    environment: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    async def run(self, observer: Observer) -> StudyResult:
        return await StudyRun(self, self.store, observer).run()

    def close(self) -> None:
        self.store.close()

    @asynccontextmanager
    async def lease(self, slot: int) -> AsyncIterator[Lease]:
        """GPUs and a port for one bench; given back at the end."""
        async with leased(self.lease_gpus, self.spec.name, devices=self.spec.hardware.devices) as mine:
            yield Lease(mine.gpus, mine.port)

    def load_client(self) -> LoadClient:
        return LoadClient(self.spec.load.client_processes)

    def command(self, config: EngineConfig) -> str:
        return "vllm serve " + " ".join([self.spec.model, *to_argv(config)])


class _NoPreflight:
    def refuse(self, config: EngineConfig) -> Infeasible | None:
        return None

    def learn(self, config: EngineConfig, engine: object) -> None:
        pass


async def assemble(study: Study, *, like: Path | None = None) -> StudyParts:
    """Read what is there and put the parts together.

    Raises:
        SpecError: study, space or model are wrong.
        EnvironmentFault: the engine is not installed.
        StoreError: the database cannot be used.
    """
    spec = study.spec
    facts = _model_facts(spec)
    context = SpaceContext(
        gpus=spec.hardware.gpus if spec.hardware.gpus is not None else 1,
        model=facts.space_facts if facts else {},
        card=spec.engine.simulate.card if spec.engine.simulate else "",
    )
    space = load_space(spec.space, context, beside=study.path.parent)
    objectives = Objectives.of(spec)
    fixed = EngineConfig.of(dict(spec.engine.args))
    baseline = fixed.merged(dict(spec.baseline.args), spec.baseline.env)
    space = space.fixing(dict(fixed.args))
    tuned = set(space.by_name)
    base = EngineConfig(tuple(item for item in baseline.args if item[0] not in tuned), baseline.env)
    standby = Standby(_model_folder(spec), STOP_GRACE)
    engine = create_engine(spec, live=SharedFileFactory(), standby=standby, base=study.path.parent)
    plain_engine = create_engine(spec, standby=standby, base=study.path.parent)
    store = study.store()
    store.open(spec.model_dump_json(), space.fingerprint)
    preflight = _NoPreflight()
    found = experts(space, context) if spec.search.experts else ()
    proposer = create_proposer(
        spec.search.proposer,
        space,
        objectives,
        base,
        spec.search.seed,
        found,
        lambda config: None,
        baseline,
        live=engine.live_settings,
    )
    return StudyParts(
        study, spec, study.folder, store, space, objectives, baseline, Rules(spec, objectives, baseline),
        engine, plain_engine, standby, preflight, None, proposer,
        facts.vocabulary if facts else 0, notes=(f"{len(found)} expert settings",),
    )  # fmt: skip


def _model_folder(spec: StudySpec) -> str:
    """The folder of a local model, else an empty string."""
    if spec.model == cpu_setup.MODEL_NAME and (found := cpu_setup.locate()) is not None:
        return str(found.model)
    folder = Path(spec.model).expanduser()
    return str(folder.resolve()) if (folder / "config.json").is_file() else ""


def _model_facts(spec: StudySpec) -> ModelFacts | None:
    return read_model(_model_folder(spec) or spec.model)
