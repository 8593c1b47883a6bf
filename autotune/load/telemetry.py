"""What the GPUs did over the window: utilisation, memory, power, clocks and throttling, five times a second."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol, TypeVar

T = TypeVar("T")

INTERVAL = 0.2
"""Real seconds between two samples."""
_IDLE_REASONS = 0x1 | 0x2
"""NVML's clock reasons that are no trouble: idle, and clocks set by an application."""


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU at one moment: utilisation in percent, memory in bytes, power in watts, SM clock in MHz."""

    utilisation: float
    memory: float
    power: float
    clock: float
    throttled: bool
    index: int = 0
    """NVML's number of the GPU."""


class GpuSampler(Protocol):
    """Where samples come from."""

    def sample(self) -> list[GpuSample]:
        """All watched GPUs now, in a fixed order; empty where they cannot be read. Never raises."""

    def close(self) -> None:
        """Let go of the driver."""


class NvmlSampler:
    """Samples the GPUs with these NVML indices; a host without NVML gives nothing."""

    def __init__(self, indices: Sequence[int]) -> None:
        self._nvml: ModuleType | None = None
        self._handles: list[object] = []
        self._indices = tuple(indices)
        if not indices:
            return
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception:
            # No library, no driver, no permission: nothing of it is the measurement's business.
            return
        self._nvml = pynvml
        with contextlib.suppress(pynvml.NVMLError):
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in indices]

    def _ask(self, question: Callable[[], T], default: T) -> T:
        assert self._nvml is not None
        try:
            return question()
        except (self._nvml.NVMLError, AttributeError):
            return default

    def sample(self) -> list[GpuSample]:
        """See `GpuSampler`."""
        nvml = self._nvml
        if nvml is None:
            return []
        found = []
        for index, handle in zip(self._indices, self._handles, strict=True):
            reasons = self._ask(lambda h=handle: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(h)), 0)  # type: ignore[misc]
            found.append(
                GpuSample(
                    self._ask(lambda h=handle: float(nvml.nvmlDeviceGetUtilizationRates(h).gpu), 0.0),  # type: ignore[misc]
                    self._ask(lambda h=handle: float(nvml.nvmlDeviceGetMemoryInfo(h).used), 0.0),  # type: ignore[misc]
                    self._ask(lambda h=handle: nvml.nvmlDeviceGetPowerUsage(h) / 1000.0, 0.0),  # type: ignore[misc]
                    self._ask(lambda h=handle: float(nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_SM)), 0.0),  # type: ignore[misc]
                    bool(reasons & ~_IDLE_REASONS),
                    index,
                )
            )
        return found

    def close(self) -> None:
        """See `GpuSampler`."""
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
            self._nvml, self._handles = None, []


class GpuWatch:
    """Samples in a thread of its own from `start` to `finish`; NVML calls may take milliseconds."""

    def __init__(self, sampler: GpuSampler, interval: float = INTERVAL) -> None:
        self._sampler = sampler
        self._interval = interval
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.samples: list[tuple[float, list[GpuSample]]] = []

    def start(self) -> None:
        """Begin with the window."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gpu-watch", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            found = self._sampler.sample()
            if not found:
                return
            self.samples.append((time.monotonic(), found))
            self._ended.wait(self._interval)

    def finish(self) -> None:
        """End with the window. May be called twice."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(5)

    def figures(self) -> dict[str, float]:
        """Means and extremes over the window; power is the sum of all GPUs, the imbalance between their mean uses.

        With several GPUs also the mean use, largest memory and mean power of each, by its number.
        """
        if not self.samples:
            return {}
        rows = [found for _, found in self.samples]
        cards = list(zip(*rows, strict=True))
        means = [_mean([item.utilisation for item in card]) for card in cards]
        flat = [item for row in rows for item in row]
        return _of_each(cards) | {
            "gpu_utilisation_mean": _mean(means),
            "gpu_imbalance": max(means) - min(means),
            "gpu_memory_max_bytes": max(item.memory for item in flat),
            "gpu_power_watts": _mean([sum(item.power for item in row) for row in rows]),
            "gpu_clock_mean_mhz": _mean([item.clock for item in flat]),
            "gpu_clock_min_mhz": min(item.clock for item in flat),
            "gpu_throttled_share": _mean([float(item.throttled) for item in flat]),
        }


def _of_each(cards: Sequence[Sequence[GpuSample]]) -> dict[str, float]:
    if len(cards) < 2:
        return {}
    found: dict[str, float] = {}
    for card in cards:
        name = f"gpu_{card[0].index}"
        found[f"{name}_utilisation_mean"] = _mean([item.utilisation for item in card])
        found[f"{name}_memory_max_bytes"] = max(item.memory for item in card)
        found[f"{name}_power_watts"] = _mean([item.power for item in card])
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
