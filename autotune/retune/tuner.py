"""What a pass needs of the world: look, measure a canary, tune, render. The real one is `autotune.retune.driver`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from autotune.retune.ledger import Gain, Pairs, Profile, Reading, Tuning
from autotune.retune.promotion import Tuned
from autotune.space.config import EngineConfig


class GiveWay(Exception):
    """The time is over or somebody asked: engines are stopped, everything finished is kept.

    Args:
        reason: one sentence.
        gpu_hours: what was spent until then.
    """

    def __init__(self, reason: str, gpu_hours: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.gpu_hours = gpu_hours


@dataclass(frozen=True, slots=True)
class Sight:
    """The present, as far as it can be seen without a measurement.

    Attributes:
        fingerprint: of vLLM, model, driver, card and the study's arguments.
        profile: what the service's users do, None where it was not asked or did not answer.
        notes: what could not be read.
        reading: the service's counters, to go on from the next time.
    """

    fingerprint: Pairs
    profile: Profile | None
    notes: tuple[str, ...] = ()
    reading: Reading | None = None


@dataclass(frozen=True, slots=True)
class Adopted:
    """What the study itself has found: the first version.

    Attributes:
        fingerprint: what it was measured on.
        profile: lengths that it was tuned for, where they were those of users.
    """

    config: EngineConfig
    gains: tuple[Gain, ...]
    sentence: str
    quality: str
    study: str
    fingerprint: Pairs
    profile: Profile | None = None


@dataclass(frozen=True, slots=True)
class CanaryResult:
    """First-objective values of the incumbent and the baseline, more is better; `problem`: why there are none."""

    incumbent: tuple[float, ...]
    baseline: tuple[float, ...]
    gpu_hours: float
    problem: str = ""


class Tuner(Protocol):
    """Measures and tunes. Every method that takes `seconds` gives way when they are over."""

    async def adopt(self) -> Adopted:
        """The study's own result.

        Raises:
            SpecError: the study has never been run.
        """

    async def look(self, before: Reading | None) -> Sight:
        """Read the present; `before`: the service's counters at the last pass."""

    def gpus(self) -> int:
        """How many GPUs a pass may keep busy at once."""

    async def obstacles(self) -> Sequence[str]:
        """Why no GPU may be taken now; empty where nothing speaks against it."""

    async def canary(self, incumbent: EngineConfig, number: int, seconds: float) -> CanaryResult:
        """Measure incumbent and baseline, three times each, interleaved; `number` names its folder.

        Raises:
            GiveWay: the time is over.
        """

    async def tune(self, tuning: Tuning, incumbent: EngineConfig, seconds: float) -> Tuned:
        """Begin or continue a re-tuning with `incumbent` as its baseline.

        Raises:
            GiveWay: the time is over.
        """

    def spent(self, tuning: Tuning) -> float:
        """GPU hours of a re-tuning so far, over all its passes."""

    def folder(self, number: int) -> str:
        """Where the re-tuning of that number keeps its study."""

    def baseline(self) -> EngineConfig:
        """The study's own baseline, which stands in where the incumbent cannot serve."""

    async def render(self, tuned: Tuned) -> tuple[tuple[str, str], ...]:
        """The files to deploy, as (relative path, text)."""

    async def render_adopted(self, adopted: Adopted) -> tuple[tuple[str, str], ...]:
        """The files of the first version."""
