"""Outcomes of a trial, and the record that is kept. Each outcome carries what follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from autotune.engine.failure_values import Advice
from autotune.engine.protocol import Phase, Resolved
from autotune.load.report import LoadReport
from autotune.quality.report import QualityReport
from autotune.space.config import EngineConfig, FrozenValue


@dataclass(frozen=True, slots=True)
class Measured:
    """The load finished and can be believed; the gate may have passed or failed.

    Attributes:
        quarantine: values whose answers fail the gate by themselves; never proposed again in this study.
    """

    load: LoadReport
    quality: QualityReport | None = None
    quarantine: tuple[tuple[str, FrozenValue], ...] = ()
    kind: Literal["measured"] = "measured"

    learn = True
    retry = False
    stop = False


@dataclass(frozen=True, slots=True)
class Infeasible:
    """The configuration cannot serve: refused, out of memory, illegal, hopeless. The search learns from it.

    Attributes:
        cause: short class, such as `oom_profiling` or `refused_divisibility`.
        reason: one sentence.
        violation: how far from feasible, above 0; 1 where only yes or no is known.
        quarantine: values that fail whatever else is set; never proposed again in this study.
        advice: what would help.
        started: an engine was started (false: refused before the start, which costs nothing).
    """

    cause: str
    reason: str
    violation: float = 1.0
    quarantine: tuple[tuple[str, FrozenValue], ...] = ()
    advice: tuple[Advice, ...] = ()
    started: bool = True
    kind: Literal["infeasible"] = "infeasible"

    learn = True
    retry = False
    stop = False


@dataclass(frozen=True, slots=True)
class Broken:
    """Our fault or the machine's: nothing is learnt about the configuration.

    Attributes:
        cause: short class, such as `port_taken`, `invalid_measurement`, `interrupted`.
        reason: one sentence.
        retry: run the same configuration again.
        stop: the study cannot go on.
        attempts: how often a configuration is run that ends so every time.
        machine: known to be the machine's fault; a second one in a row stops the study.
    """

    cause: str
    reason: str
    retry: bool = True
    stop: bool = False
    attempts: int = 3
    machine: bool = False
    kind: Literal["broken"] = "broken"

    learn = False


Outcome: TypeAlias = Annotated[Measured | Infeasible | Broken, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A configuration to try.

    Attributes:
        config: complete configuration of the trial (fixed arguments, baseline or point of the space).
        point: values of the space's parameters; empty for a baseline outside the space.
        origin: `baseline`, `expert`, `sampler`, `mutation`, `warm`, `retry`, `sentinel`, `alone`, `beside`,
            `confirm` or `minimise`.
        note: where an expert setting comes from, what was mutated.
        ticket: number that the proposer recognises when it is told the outcome; -1 where it needs none.
    """

    config: EngineConfig
    point: tuple[tuple[str, FrozenValue], ...] = ()
    origin: str = "sampler"
    note: str = ""
    ticket: int = -1


@dataclass(frozen=True)
class TrialRecord:
    """Everything that is kept of one trial. Times are Unix seconds, durations seconds."""

    number: int
    proposal: Proposal
    outcome: Outcome
    started_at: float
    seconds: float
    gpus: int = 0
    phases: tuple[Phase, ...] = ()
    resolved: Resolved | None = None
    stage_seconds: tuple[tuple[str, float], ...] = ()
    """Where the time went: `start`, `warmup`, `measure`, `quality`, `stop`, `overhead`."""
    attempt: int = 1
    restarted: bool = True
    """False where a running engine was reconfigured live."""
    folder: Path | None = None
    environment: tuple[tuple[str, str], ...] = field(default=())
    """Fingerprint of host, card, driver and engine."""
    place: int = 0
    """Which of the places that measure at the same time it ran at."""
    node: str = ""
    """Host that it ran on, where that was not the driver's own."""

    @property
    def config(self) -> EngineConfig:
        return self.proposal.config
