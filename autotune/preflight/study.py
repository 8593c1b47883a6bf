"""Preflight of one study: refuses what cannot work, and learns from every start."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from autotune.engine.failure_values import Advice, Direction
from autotune.engine.failures import read_log
from autotune.engine.protocol import Started
from autotune.engine.startfacts import StartFacts
from autotune.engine.startlog import StartLog
from autotune.host.fingerprint import memory_bytes
from autotune.host.gpus import GpuHost
from autotune.outcome import Infeasible
from autotune.preflight.calibration import Calibration
from autotune.preflight.calibration_store import CalibrationKey, CalibrationStore, MemoryCalibrations
from autotune.preflight.cards import card_facts, measured_facts, unknown_card
from autotune.preflight.memory import GpuFacts, Limit, MemoryBudget, Shortage, predict
from autotune.preflight.model import ModelFacts
from autotune.preflight.rules import Case, Refusal, check_rules, refusal
from autotune.preflight.settings import serving_of
from autotune.preflight.terms import GIB, terms_of
from autotune.space.arguments import ArgumentTable
from autotune.space.config import EngineConfig
from autotune.space.topology import SplitPlan, split_plan, split_slots
from autotune.spec.study import StudySpec, TopologySpec


@dataclass
class StudyPreflight:
    """Implements the driver's `Preflight`. Without facts or card it refuses by the rules that need neither.

    Attributes:
        facts: of the model.
        gpu: of a trial (all are alike), or the host for the CPU engine.
        gpus: number of GPUs of a trial, None where unknown.
        table: arguments of the vLLM that is installed; None checks no names.
        store: where calibrations are kept.
        model, version: for the calibration's key; an empty version is taken from the first log.
        graphs_reserved: see `predict`.
        topology, slots: where a trial is several engines: which, and what they share (see `split_plan`).
        images: images in a prompt of the load.
    """

    facts: ModelFacts | None
    gpu: GpuFacts | None
    gpus: int | None = None
    table: ArgumentTable | None = None
    store: CalibrationStore = field(default_factory=MemoryCalibrations)
    model: str = ""
    version: str = ""
    graphs_reserved: bool | None = None
    topology: TopologySpec = field(default_factory=TopologySpec)
    slots: int = 0
    images: int = 0
    calibration: Calibration = field(init=False)

    def __post_init__(self) -> None:
        self.calibration = Calibration.from_json(self.store.get(str(self.key)))

    @property
    def key(self) -> CalibrationKey:
        """What the calibration holds for."""
        card = (self.gpu.name or f"{self.gpu.memory_bytes / GIB:.0f}GiB") if self.gpu else "unknown"
        return CalibrationKey("cpu" if self.gpu and self.gpu.cpu else card, self.model, self.version)

    @property
    def errors(self) -> tuple[float, ...]:
        """Errors of the predicted KV cache tokens, one a start, oldest first (shares)."""
        return self.calibration.errors

    def refuse(self, config: EngineConfig) -> Infeasible | None:
        """The reason why `config` cannot work, or None. Never raises, takes less than a millisecond."""
        found = self.refusals(config)
        return found[0].outcome if found else None

    def refusals(self, config: EngineConfig) -> tuple[Refusal, ...]:
        """Everything that is wrong with `config`; memory only where the rules find nothing."""
        if not self.topology.split:
            return self._refusals(config, self.gpus)
        plan = self.plan(config)
        if plan.problem:
            return (refusal("split", {"problem": plan.problem}),)
        for member in plan.roles:
            found = self._refusals(member.config, member.gpus)
            if found:
                return tuple(replace(one, reason=f"{member.role} engine: {one.reason}") for one in found)
        return ()

    def _refusals(self, config: EngineConfig, gpus: int | None) -> tuple[Refusal, ...]:
        """Of one engine."""
        found = check_rules(self._case(config, gpus), self.table)
        if found:
            return found
        budget = self._budget(config)
        if budget is None:
            return ()
        if budget.shortage is not None:
            return (memory_refusal(budget, budget.shortage),)
        return self._hybrid(budget)

    def budget(self, config: EngineConfig) -> MemoryBudget | None:
        """The memory of one GPU; None where model or card are not known.

        Where a trial is several engines: of the last one, a decode engine or a replica.
        """
        plan = self.plan(config) if self.topology.split else SplitPlan()
        return self._budget(plan.members[-1].config if plan.members else config)

    def plan(self, config: EngineConfig) -> SplitPlan:
        """The engines of a trial that is several."""
        on_cpu = self.gpu is not None and self.gpu.cpu
        return split_plan(config, self.slots, transfer=self.topology.transfer, on_cpu=on_cpu)

    def _budget(self, config: EngineConfig) -> MemoryBudget | None:
        if self.facts is None or self.gpu is None:
            return None
        return predict(self.facts, config, self.gpu, self.calibration, graphs_reserved=self.graphs_reserved)

    def learn(self, config: EngineConfig, engine: Started) -> None:
        """Calibrate with what a real start showed. Needs the engine's log; without one nothing is learnt."""
        if engine.log is None:
            return
        estimates: list[float] = []
        try:
            said = StartLog().feed_all(_noting(read_log(engine.log), estimates)).facts
        except OSError:
            return
        if said.kv_cache_tokens is None and engine.resolved.kv_cache_tokens:
            said = replace(said, kv_cache_tokens=engine.resolved.kv_cache_tokens)
        if not self.version and said.vllm_version:
            self.version = said.vllm_version
            self.calibration = Calibration.from_json(self.store.get(str(self.key)))
        self.learn_facts(config, said, graph_estimate=max(estimates, default=0.0))

    def learn_facts(self, config: EngineConfig, said: StartFacts, *, graph_estimate: float = 0.0) -> None:
        """Calibrate with the facts of a start's log, and the GiB of graphs that it says to expect."""
        budget = self.budget(config)
        if budget is None or self.facts is None or self.gpu is None or not said.kv_cache_tokens:
            return
        formula = terms_of(self.facts, budget.serving)
        tokens = budget.kv_cache_tokens
        self.calibration = self.calibration.with_start(
            budget.serving,
            formula,
            said,
            memory=self.gpu.memory_bytes,
            predicted=tokens,
            graph_estimate=graph_estimate,
        )
        self.store.put(str(self.key), self.calibration.to_json())

    def _case(self, config: EngineConfig, gpus: int | None) -> Case:
        cpu = self.gpu is not None and self.gpu.cpu
        memory, card = (self.gpu.memory_bytes, self.gpu.name) if self.gpu else (None, "")
        serving = serving_of(config, self.facts, memory=memory, card=card, cpu=cpu)
        return Case(config, serving, self.facts, gpus, cpu, self.gpu is not None, self.images)

    def _hybrid(self, budget: MemoryBudget) -> tuple[Refusal, ...]:
        """A sequence of a hybrid model keeps a block of state; one and a half times what fits is surely too much."""
        facts, serving = self.facts, budget.serving
        if facts is None or not facts.state_elements or budget.kv_cache <= 0:
            return ()
        state = facts.state_elements * serving.dtype_bytes / serving.layout.tensor / serving.layout.pipeline
        blocks = int((budget.kv_cache + budget.margin.profile) * 1.5 // state)
        if serving.max_num_seqs <= blocks:
            return ()
        return (refusal("hybrid_seqs", {"seqs": serving.max_num_seqs, "blocks": int(blocks / 1.5)}),)


_ESTIMATED = re.compile(r"Estimated CUDA graph memory: ([\d.]+) GiB total")


def _noting(lines: Iterable[str], estimates: list[float]) -> Iterator[str]:
    """The lines as they are; what the engine expects of graphs is noted on the way."""
    for line in lines:
        if found := _ESTIMATED.search(line):
            estimates.append(float(found[1].rstrip(".")))
        yield line


def preflight_for(
    spec: StudySpec,
    facts: ModelFacts | None,
    host: GpuHost | None,
    table: ArgumentTable | None,
    *,
    store: CalibrationStore | None = None,
    version: str = "",
    memory: int | None = None,
) -> StudyPreflight:
    """The preflight of a study.

    Args:
        spec: the study.
        facts: of its model, None where no `config.json` is at hand.
        host: the GPUs, read while they are idle; None or empty for a plan without them.
        table: arguments of the installed vLLM.
        store: where calibrations are kept.
        version: of the engine.
        memory: bytes of the host, for the CPU engine; default: as read now.
    """
    gpu, gpus = study_gpu(spec, host, memory)
    kept = store if store is not None else MemoryCalibrations()
    reserved = False if spec.engine.kind == "simulated" else None  # the simulator captures outside the budget
    slots = split_slots(spec, gpus)
    images = spec.load.images.count if spec.load.images is not None else 0
    return StudyPreflight(facts, gpu, gpus, table, kept, spec.model, version, reserved, spec.topology, slots, images)


def study_gpu(spec: StudySpec, host: GpuHost | None, memory: int | None = None) -> tuple[GpuFacts | None, int | None]:
    """The card that trials run on and how many of it they have: what the study says goes before what NVML says.

    Raises:
        SpecError: the study names a card whose memory nobody knows, and it is not at hand either.
    """
    hardware = spec.hardware
    if spec.engine.kind == "simulated" and spec.engine.simulate is not None:
        return card_facts(spec.engine.simulate.card), hardware.most_gpus or 1
    if hardware.gpus == 0 or spec.engine.python == "cpu":
        size = memory if memory is not None else memory_bytes()
        return (GpuFacts(size, "cpu", cpu=True) if size else None), hardware.gpus
    found = tuple(host.gpus) if host is not None else ()
    if hardware.devices is not None:
        found = tuple(gpu for gpu in found if gpu.index in hardware.devices)
    count = hardware.most_gpus if hardware.gpus is not None else (hardware.gpus_of_trial(len(found)) or None)
    if hardware.card is not None or hardware.gpu_memory is not None:
        named = card_facts(hardware.card or "", hardware.gpu_memory)
        if named is not None:
            return named, count
        if not found:
            raise unknown_card(hardware.card or "")
    return measured_facts(found), count


_MEMORY_ADVICE: dict[Limit, tuple[str, Direction, str]] = {
    Limit.REQUEST: ("gpu_memory_utilization", Direction.DOWN, "Lower gpu_memory_utilization, or free the card."),
    Limit.WEIGHTS: (
        "tensor_parallel_size",
        Direction.UP,
        "Spread the weights over more GPUs, or quantise them; gpu_memory_utilization does not help.",
    ),
    Limit.PROFILE: ("max_num_batched_tokens", Direction.DOWN, "Lower max_num_batched_tokens or spread the model."),
    Limit.NO_CACHE: (
        "gpu_memory_utilization",
        Direction.UP,
        "Raise gpu_memory_utilization, lower max_model_len or max_num_batched_tokens, or spread the model.",
    ),
    Limit.GRAPHS: ("gpu_memory_utilization", Direction.DOWN, "Lower gpu_memory_utilization or capture fewer graphs."),
    Limit.SAMPLER: ("max_num_seqs", Direction.DOWN, "Lower max_num_seqs or gpu_memory_utilization."),
}


def memory_refusal(budget: MemoryBudget, shortage: Shortage) -> Refusal:
    """A refusal in words: what is short, and by how much."""
    needed, there = shortage.needed / GIB, shortage.there / GIB
    if shortage.limit is Limit.NO_CACHE:
        length = budget.serving.max_model_len
        reason = f"a request of {length:,} tokens needs {needed:.2f} GiB of KV cache, and {there:.2f} GiB are left"
    else:
        reason = f"{budget.limiting}: {needed:.2f} GiB are needed, and {there:.2f} GiB are there"
    parameter, direction, text = _MEMORY_ADVICE[shortage.limit]
    if budget.serving.kv_cache_bytes is not None and parameter == "gpu_memory_utilization":
        down = shortage.limit is Limit.REQUEST
        parameter, direction = "kv_cache_memory_bytes", Direction.DOWN if down else Direction.UP
        text = "Ask for less KV cache." if down else "Ask for more KV cache, or lower max_model_len."
    advice = Advice(parameter, direction, text)
    return Refusal(shortage.limit.value, shortage.limit.value, reason, "", advice, shortage.violation)
