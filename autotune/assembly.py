"""Puts the rooms together for one study: the only place that knows which implementation stands behind each protocol."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from autotune.decision import Rules
from autotune.earlier import Today, take_over
from autotune.engine import cpu_setup
from autotune.engine.live_scheduler import SharedFileFactory
from autotune.engine.probe import probe
from autotune.engine.protocol import Engine
from autotune.engine.registry import create_engine
from autotune.errors import EnvironmentFault, SpecError
from autotune.events import Observer
from autotune.executor import Executor
from autotune.host.doctor import diagnose
from autotune.host.facts import read_installation
from autotune.host.findings import Finding, Level, as_entries
from autotune.host.fingerprint import fingerprint
from autotune.host.gpus import GpuHost, read_gpus
from autotune.host.state import state_dir
from autotune.host.topology import slowest_link, tensor_links, trial_group
from autotune.outcome import Measured
from autotune.places import VIRTUAL_TIME, executor_of, in_its_time
from autotune.preflight.calibration_store import DocumentCalibrations, FileCalibrations, LayeredCalibrations
from autotune.preflight.layouts import link_warnings
from autotune.preflight.model import ModelFacts, read_model
from autotune.preflight.simulated import facts_by_name, simulated_facts
from autotune.preflight.study import StudyPreflight, preflight_for
from autotune.quality.gate import gate_for
from autotune.result import StudyResult
from autotune.run import StudyRun
from autotune.search.account import keep_account
from autotune.search.objectives import Objectives
from autotune.search.proposer import Proposer, create_proposer
from autotune.search.view import OptunaView
from autotune.space.arguments import ArgumentTable, bundled_table
from autotune.space.argv import to_argv
from autotune.space.catalogue import SpaceContext, load_space
from autotune.space.config import EngineConfig
from autotune.space.experts import Expert, experts
from autotune.space.given import check_given
from autotune.space.headroom import Headroom
from autotune.space.layout import Layout
from autotune.space.space import SearchSpace
from autotune.spec.load import completed, placing
from autotune.spec.study import LoadSpec, StudySpec
from autotune.store import Store
from autotune.study import SAME, Study, open_study
from autotune.trial import Placement, QualityGate

COMPILES = frozenset(
    {"quantization", "kv_cache_dtype", "dtype", "max_num_batched_tokens", "enforce_eager", "compilation_config.mode"}
)
"""Settings whose change makes torch.compile work again; measured, see docs/evidence."""


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
    preflight: StudyPreflight
    gate: QualityGate | None
    placement: Placement
    proposer: Proposer
    view: OptunaView
    vocabulary: int
    lease_gpus: int
    """Real GPUs that one trial has at most."""
    trial_gpus: int
    """GPUs that a trial has at most, simulated ones included; it is charged for them, or for its own of a pool."""
    headroom: Headroom
    environment: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]

    def gpus_of(self, config: EngineConfig) -> int:
        """GPUs that a trial holds and is charged for: its layout's where GPUs are shared, else all that it may have."""
        if not self.spec.hardware.shared or self.spec.topology.split:
            return self.trial_gpus
        return min(Layout.of(config).gpus, self.trial_gpus)

    async def run(self, observer: Observer) -> StudyResult:
        """Run the study; see `StudyRun.run`."""
        with executor_of(self, observer) as executor:
            return await in_its_time(self, lambda: self._run(observer, executor))

    async def _run(self, observer: Observer, executor: Executor) -> StudyResult:
        try:
            return await StudyRun(self, self.store, observer, executor).run()
        finally:
            await executor.close()

    def close(self) -> None:
        """Keep the account of the space, close the database."""
        keep_account(self.store, self.space, self.baseline, self.preflight.refuse, self.spec.search.seed)
        self.store.close()

    def command(self, config: EngineConfig) -> str:
        """The shell command that starts `config` where a trial is one engine."""
        return shell_command(cpu_setup.model_path(self.spec.model), config)


def shell_command(model: str, config: EngineConfig) -> str:
    """`vllm serve ...` with variables in front, quoted for a shell."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in config.env]
    return " ".join([*variables, "vllm", "serve", shlex.quote(model), *map(shlex.quote, to_argv(config))])


@dataclass(frozen=True)
class StudyFrame:
    """What a study is before it runs: its model, machine, space and baseline. Starts nothing.

    Attributes:
        facts: of the model, None where its files are not at hand.
        base: arguments that every trial gets.
        baseline: what runs today, complete.
        context: what space and expert settings were fitted to.
    """

    spec: StudySpec
    facts: ModelFacts | None
    space: SearchSpace
    objectives: Objectives
    base: EngineConfig
    baseline: EngineConfig
    context: SpaceContext
    preflight: StudyPreflight

    @property
    def headroom(self) -> Headroom:
        """How much wider than asked for engines are started during the search."""
        return Headroom.of(self.baseline, dict(self.space.defaults))


def frame(
    study: Study,
    host: GpuHost,
    store: Store | None = None,
    table: ArgumentTable | None = None,
    *,
    guess: bool = False,
) -> StudyFrame:
    """Read what is there and fit space and baseline to it.

    Args:
        study: the study.
        host: its GPUs, read while they are idle.
        store: the study's database, for calibrations of its own; the host's are used too where time is real.
        table: arguments of the vLLM that will be started; default: the shipped table.
        guess: tell the shape of a model whose files are not here from its name. Good enough for a plan, not for a run.

    Raises:
        SpecError: study, space or model are wrong.
    """
    spec = study.spec
    kept = [] if spec.engine.virtual else [FileCalibrations(state_dir() / "calibrations")]  # a study repeats itself
    calibrations = LayeredCalibrations((*((DocumentCalibrations(store),) if store else ()), *kept))
    understood = table or bundled_table()
    with placing(study.path, study.overrides):
        facts = model_facts(spec) or (facts_by_name(spec.model) if guess else None)
        preflight = preflight_for(spec, facts, host, understood, store=calibrations, version=_version(spec))
    card = preflight.gpu
    simulated = spec.engine.kind == "simulated"
    group = trial_group(None if simulated else host, spec.hardware.devices, preflight.gpus)
    context = SpaceContext(
        gpus=preflight.gpus if preflight.gpus is not None else 1,
        model=facts.space_facts if facts else {},
        card=spec.engine.simulate.card if spec.engine.simulate else (card.name if card else ""),
        gpu_memory=card.memory_bytes if card and not card.cpu else None,
        links=slowest_link(group),
        tensor_links=tensor_links(group),
        split=spec.topology.split,
    )
    fixed = EngineConfig.of(dict(spec.engine.args))
    with placing(study.path, study.overrides):
        check_given(spec, understood)
        space = load_space(spec.space, context, beside=study.path.parent).fixing(dict(fixed.args))
    baseline = fixed.merged(dict(spec.baseline.args), spec.baseline.env)
    base = EngineConfig(tuple(item for item in baseline.args if item[0] not in space.by_name), baseline.env)
    return StudyFrame(spec, facts, space, Objectives.of(spec), base, baseline, context, preflight)


async def assemble(study: Study, *, like: Path | None = None, anew: str = "") -> StudyParts:
    """Put the parts of a study together; opens its database.

    Args:
        study: the study; the caller holds its lock.
        like: an older study whose measurements are taken over, or tried first.
        anew: why they are only tried first, even where the conditions are the same.

    Raises:
        SpecError: study, space or model are wrong.
        EnvironmentFault: the engine is not installed, or this host cannot run the study.
        StoreError: the database cannot be used.
    """
    spec, host = study.spec, read_gpus()
    if like is not None:
        open_study(like).existing_store().close()  # a mistaken name leaves no folder behind
    store = study.store()
    if not store.claim():
        store.close()
        raise EnvironmentFault(
            f"study {spec.name!r} is being run by another driver in the same database",
            hint="give this study another name, or wait for the other one",
        )
    made = frame(study, host, store, await asyncio.to_thread(_argument_table, spec))
    environment = fingerprint(
        model=_model_folder(spec) or spec.model, revision=spec.revision, engine=_version(spec), host=host
    )
    findings = await asyncio.to_thread(_doctor, study, host)
    environment = (*environment, *as_entries(findings))
    warned = [finding.text for finding in findings if finding.level is Level.WARNING]
    warned += link_warnings(made.space, made.baseline, made.context)
    notes = (*([VIRTUAL_TIME] if spec.engine.virtual else []), *(f"warning: {text}" for text in warned))
    with placing(study.path, study.overrides):
        _must_be_the_same(store, study)
    store.open(spec.model_dump_json(), made.space.fingerprint)
    engine = create_engine(spec, live=SharedFileFactory(), base=study.path.parent)
    rules = Rules(spec, made.objectives, made.baseline, made.preflight)
    found = experts(made.space, made.context) if spec.search.experts else ()
    if like is not None:
        today = Today(
            spec, environment, made.objectives, made.space, made.base, made.baseline, _StoredPlacement(store).get()
        )
        given = take_over(like, store, today, anew=anew)
        found, notes = (*given.warm, *found), (*notes, given.sentence)
    return StudyParts(
        study=study,
        spec=spec,
        folder=study.folder,
        store=store,
        space=made.space,
        objectives=made.objectives,
        baseline=made.baseline,
        rules=rules,
        preflight=made.preflight,
        gate=gate_for(spec, _Documents(store, "quality"), made.baseline, beside=study.path.parent),
        placement=_StoredPlacement(store),
        proposer=_proposer(made, found, engine, rules),
        view=OptunaView(study.database, spec.name, made.space, made.objectives),
        vocabulary=made.facts.vocabulary if made.facts else 0,
        lease_gpus=_lease_gpus(spec, host),
        trial_gpus=_trial_gpus(spec, host, made.preflight),
        headroom=made.headroom,
        environment=environment,
        notes=notes,
    )


def _must_be_the_same(store: Store, study: Study) -> None:
    """A study that goes on measures the same thing as before.

    Raises:
        SpecError: model, fixed arguments, baseline or load differ from those of the records that are there.
    """
    head = store.head()
    measured = sum(isinstance(record.outcome, Measured) for record in store.history())
    if head is None or not measured:
        return
    before, now = json.loads(completed(head.spec)), json.loads(study.spec.model_dump_json())
    for key in SAME:
        old, new = before, now
        for part in key.split("."):
            old, new = old.get(part, {}), new.get(part, {})
        if old != new:
            raise SpecError(
                f"study {study.spec.name!r} holds {measured} trials that were measured with another {key}",
                key=key,
                hint="undo that; or give the study another name and start it with "
                f"--like {study.path} (a copy of the old file); or move {study.folder} away",
            )


def _proposer(made: StudyFrame, found: tuple[Expert, ...], engine: Engine, rules: Rules) -> Proposer:
    search = made.spec.search
    return create_proposer(
        search.proposer,
        made.space,
        made.objectives,
        made.base,
        search.seed,
        found,
        rules.refusal,
        made.baseline,
        live=engine.live_settings,
        compiles=COMPILES,
        headroom=made.headroom,
    )


def _doctor(study: Study, host: GpuHost) -> tuple[Finding, ...]:
    """Examine the host; errors stop the study before it costs anything.

    Raises:
        EnvironmentFault: something will spoil every trial.
    """
    if study.spec.engine.kind in ("simulated", "endpoint") or study.spec.hardware.cluster is not None:
        return ()
    found = cpu_setup.locate() if study.spec.engine.python == "cpu" else None
    findings = diagnose(study.spec, python=found.python if found else None, folder=study.folder.parent, gpus=host)
    errors = [finding for finding in findings if finding.level is Level.ERROR]
    if errors:
        raise EnvironmentFault("; ".join(finding.text for finding in errors), hint=errors[0].fix)
    return findings


def _argument_table(spec: StudySpec) -> ArgumentTable:
    """What the installed vLLM understands: the shipped table where the version is its own, else its parser is asked."""
    shipped = bundled_table()
    if spec.engine.kind != "vllm" or spec.engine.python == cpu_setup.INTERPRETER_NAME:
        return shipped
    if _version(spec) in ("", shipped.version):
        return shipped
    return probe(spec.engine.python or sys.executable, state_dir() / "arguments")


def _version(spec: StudySpec) -> str:
    """Version of the engine as far as files tell, without its build; empty where they do not."""
    if spec.engine.kind == "simulated":
        return "simulated"
    found = cpu_setup.locate() if spec.engine.python == cpu_setup.INTERPRETER_NAME else None
    python = found.python if found is not None else Path(spec.engine.python or sys.executable)
    return read_installation(python).vllm.partition("+")[0]


def model_facts(spec: StudySpec) -> ModelFacts | None:
    """Facts of the study's model: its files, the CPU engine's model, or a shape that the simulator knows."""
    if spec.engine.kind == "simulated":
        return simulated_facts(spec.model)
    return read_model(_model_folder(spec) or spec.model)


def _model_folder(spec: StudySpec) -> str:
    """The folder of a local model, else an empty string."""
    folder = Path(cpu_setup.model_path(spec.model)).expanduser()
    return str(folder.resolve()) if (folder / "config.json").is_file() else ""


def _lease_gpus(spec: StudySpec, host: GpuHost) -> int:
    """GPUs that one bench takes from this host."""
    if spec.engine.kind in ("simulated", "endpoint") or spec.engine.python == "cpu" or spec.engine.elsewhere:
        return 0
    count = spec.hardware.gpus if spec.hardware.gpus is not None else len(spec.hardware.devices or host.gpus)
    return spec.hardware.gpus_of_trial(count)


def _trial_gpus(spec: StudySpec, host: GpuHost, preflight: StudyPreflight) -> int:
    """GPUs that a trial is charged for; those of a simulated engine or of another host are only counted."""
    if spec.engine.kind == "simulated" or spec.engine.elsewhere:
        return preflight.gpus or 1
    return _lease_gpus(spec, host)


@dataclass(frozen=True)
class _StoredPlacement:
    """The placed load, in the study's database."""

    store: Store

    def get(self) -> LoadSpec | None:
        return self.store.read("load", "placed", LoadSpec.model_validate_json)

    def put(self, load: LoadSpec) -> None:
        self.store.put("load", "placed", load.model_dump_json())


@dataclass(frozen=True)
class _Documents:
    """Documents of one kind in the study's database."""

    store: Store
    kind: str

    def get(self, key: str) -> str | None:
        return self.store.get(self.kind, key)

    def put(self, key: str, body: str) -> None:
        self.store.put(self.kind, key, body)
