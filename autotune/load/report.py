"""What a load measured, as values. The definitions of the metrics stand in `autotune.load.metrics`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured figure with its 95 % bootstrap interval over time blocks; `n` samples went into it."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True)
class Level:
    """A load level: `closed` is a number of requests in flight, `open` a rate in requests a second."""

    kind: str
    value: float

    def __str__(self) -> str:
        return f"c={self.value:g}" if self.kind == "closed" else f"{self.value:g}/s"


@dataclass(frozen=True, slots=True)
class LevelReport:
    """One load level on one engine.

    Attributes:
        metrics: figures by metric key, such as `output_throughput`, `ttft_p95_ms` (see `autotune.load.metrics.KEYS`).
        invalid: reasons why the figures cannot be believed; empty for a valid run.
        stopped: why the level ended early, or None.
        requests: finished requests in the window.
        errors: failed requests in the window.
        window_s: length of the measured window in seconds.
        warmup_s: seconds spent warming up.
        engine: server-side figures over the window by name (`kv_usage_max`, `preemptions`, `prefix_hit_rate`, ...).
        content_hash: hash of the sent contents.
        plan_hash: hash of lengths and arrival times; equal for all trials of a study.
        samples: request-level arrays (.npz), or None.
        notes: what is to be known of a valid measurement: overload, preemptions, requests held up before the engine.
    """

    level: Level
    metrics: tuple[tuple[str, Estimate], ...]
    invalid: tuple[str, ...] = ()
    stopped: str | None = None
    requests: int = 0
    errors: int = 0
    window_s: float = 0.0
    warmup_s: float = 0.0
    engine: tuple[tuple[str, float], ...] = ()
    content_hash: str = ""
    plan_hash: str = ""
    samples: Path | None = None
    notes: tuple[str, ...] = ()

    def estimate(self, key: str) -> Estimate | None:
        """The figure of one metric, or None where this level has none."""
        return dict(self.metrics).get(key)


@dataclass(frozen=True, slots=True)
class LoadReport:
    """All load levels of one engine start, in the order they were measured."""

    levels: tuple[LevelReport, ...]

    @property
    def invalid(self) -> tuple[str, ...]:
        """Every reason for disbelief, with its level in front."""
        return tuple(f"{item.level}: {reason}" for item in self.levels for reason in item.invalid)


@dataclass(frozen=True, slots=True)
class Target:
    """The server under load. `time_scale` multiplies measured seconds (a simulator may run faster than real time)."""

    url: str
    model: str
    api_key: str = ""
    time_scale: float = 1.0
    vocabulary: int = 0
    """Size of the vocabulary for random token ids; 0: ask the server."""
    ca_file: str = ""
    """For https: PEM file with the authority; empty: the system's authorities."""
    insecure: bool = False
    """For https: believe any certificate."""
