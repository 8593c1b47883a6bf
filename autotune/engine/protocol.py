"""What an engine is to the rest of the project: something that starts, answers, may change live, and stops."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

from autotune.engine.failure_values import Failure
from autotune.space.config import EngineConfig, FrozenValue

OnPhase: TypeAlias = Callable[[str], None]
"""Called with the name of each stage of a start as it begins."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A stage of a start and the seconds it took."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Lease:
    """What a trial may use: GPU indices (NVML numbering, empty on CPUs), a port on loopback, and processors.

    Without `cpus` the kernel decides where the engine runs.
    """

    gpus: tuple[int, ...]
    port: int
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StartFailure:
    """The engine did not come up. `failure` says why and what follows from it."""

    failure: Failure
    phases: tuple[Phase, ...]
    seconds: float
    log: Path | None


@dataclass(frozen=True, slots=True)
class StopReport:
    """How an engine ended.

    Attributes:
        seconds: from the first signal until the last process was gone and its GPU memory was back.
        killed: SIGKILL was needed.
        leftovers: what could not be removed, in words; empty when nothing is left.
    """

    seconds: float
    killed: bool = False
    leftovers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Resolved:
    """What the engine says it runs with, where it says so, and how that differs from what was asked.

    Attributes:
        values: resolved settings by argument name.
        mismatches: sentences; any of them makes the trial invalid (an ignored variable, a fallback, another value).
        notes: harmless remarks.
        kv_cache_tokens: size of the KV cache in tokens, 0 where unknown.
        version: the engine's version.
        warnings: sentences; what makes it slower here than it could be.
    """

    values: tuple[tuple[str, FrozenValue], ...] = ()
    mismatches: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    kv_cache_tokens: int = 0
    version: str = ""
    warnings: tuple[str, ...] = ()


class Started(Protocol):
    """What a start leaves to learn from."""

    @property
    def log(self) -> Path | None: ...

    @property
    def resolved(self) -> Resolved: ...


class RunningEngine(Protocol):
    """An engine that answers requests and is proven to be ours."""

    @property
    def url(self) -> str:
        """Base URL without a trailing slash, such as ``http://127.0.0.1:41234``."""

    @property
    def api_key(self) -> str:
        """Key of this trial; empty where the server wants none. Never stored or logged."""

    @property
    def served_model(self) -> str:
        """Model name to put into requests."""

    @property
    def time_scale(self) -> float:
        """Multiply measured seconds by this (1.0 but for a simulator that runs faster than real time)."""

    @property
    def resolved(self) -> Resolved: ...

    @property
    def phases(self) -> tuple[Phase, ...]: ...

    @property
    def log(self) -> Path | None:
        """The engine's output so far."""

    def failure(self) -> Failure | None:
        """Why the engine is dead, or None while it lives. Cheap; may be called ten times a second."""

    def processes(self) -> tuple[int, ...]:
        """Process ids that belong to the engine."""

    async def metrics(self) -> dict[str, float]:
        """Prometheus samples summed over labels, by name; empty where the server has none."""

    async def reset_caches(self) -> bool:
        """Empty the prefix cache; False where the server cannot."""

    async def reconfigure(self, live: Mapping[str, FrozenValue]) -> bool:
        """Apply live settings to the idle engine; False where it cannot (then a restart is needed)."""

    async def stop(self) -> StopReport:
        """End it and wait until processes, port and GPU memory are free. May be called twice."""


class Engine(Protocol):
    """Starts engines of one kind."""

    @property
    def live_settings(self) -> frozenset[str]:
        """Names that `reconfigure` may change without a restart."""

    async def start(
        self, config: EngineConfig, lease: Lease, *, folder: Path, on_phase: OnPhase | None = None
    ) -> RunningEngine | StartFailure:
        """Start the engine for `config` and wait until it has answered a probe request.

        Args:
            config: complete configuration, fixed arguments included.
            lease: GPUs and port.
            folder: the trial's folder, for `engine.log`.
            on_phase: hears of the stages.

        Raises:
            EnvironmentFault: the host cannot start anything at all.
        """


@dataclass(frozen=True)
class EngineContext:
    """What every engine factory is given: the study's fixed part, resolved once."""

    model: str
    args: EngineConfig = field(default_factory=EngineConfig)
    ready_timeout: float = 900.0
    hang_timeout: float = 60.0


Cleanup = Callable[[], Awaitable[None]]
