"""The server's own figures over the window, from its /metrics."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp

from autotune.load.control import control_session, root_of
from autotune.load.report import Target
from autotune.load.telemetry import GpuWatch
from autotune.virtualtime import now

MetricsSource = Callable[[], Awaitable[dict[str, float]]]
INTERVAL = 1.0
"""Real seconds between two readings."""
TIMEOUT = 10.0
_ENGINE = re.compile(r'generation_tokens_total\{engine="([^"]+)"\}')


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading: when it was asked for and answered (CLOCK_MONOTONIC), and the samples without vLLM's prefix."""

    asked: float
    answered: float
    values: dict[str, float]

    @property
    def at(self) -> float:
        return (self.asked + self.answered) / 2


def parse_prometheus(text: str) -> dict[str, float]:
    """Samples of the text format summed over their labels, by name."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        head, _, rest = line.partition("}") if "{" in line else line.partition(" ")
        fields = rest.split()
        if fields:
            name = head.split("{")[0].strip()
            with contextlib.suppress(ValueError):
                found[name] = found.get(name, 0.0) + float(fields[0])
    return found


def metrics_of(target: Target) -> MetricsSource:
    """A source that reads the target's /metrics; it gives an empty dict where the server has none."""

    async def read() -> dict[str, float]:
        try:
            async with (
                control_session(target, TIMEOUT) as session,
                session.get(root_of(target) + "/metrics") as response,
            ):
                return parse_prometheus(await response.text()) if response.status == 200 else {}
        except (aiohttp.ClientError, TimeoutError, UnicodeDecodeError):
            return {}

    return read


class EngineWatch:
    """Reads the metrics in the background while a level runs."""

    def __init__(self, source: MetricsSource | None, gpus: GpuWatch | None = None) -> None:
        self._source = source
        self.gpus = gpus
        self._task: asyncio.Task[None] | None = None
        self.readings: list[Reading] = []

    async def read(self) -> None:
        """Take one reading now; a failing source gives none."""
        if self._source is None:
            return
        asked = now()
        try:
            async with asyncio.timeout(TIMEOUT):
                values = await self._source()
        except (OSError, TimeoutError, aiohttp.ClientError):
            return
        if values:
            plain = {name.removeprefix("vllm:").removeprefix("vllm_"): value for name, value in values.items()}
            self.readings.append(Reading(asked, now(), plain))

    async def _poll(self) -> None:
        while True:
            await self.read()
            await asyncio.sleep(INTERVAL)

    def start(self) -> None:
        """Begin with the window."""
        if self.gpus is not None:
            self.gpus.start()
        if self._source is not None and self._task is None:
            self._task = asyncio.create_task(self._poll())

    async def finish(self) -> None:
        """Take the last reading and stop."""
        await self.cancel()
        await self.read()

    async def cancel(self) -> None:
        """Stop without a last reading."""
        if self.gpus is not None:
            await asyncio.to_thread(self.gpus.finish)
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def growth(self, name: str) -> float | None:
        """Growth of a counter from the first to the last reading, or None where it is not served."""
        if len(self.readings) < 2 or name not in self.readings[-1].values:
            return None
        return self.readings[-1].values[name] - self.readings[0].values.get(name, 0.0)

    def figures(self) -> dict[str, float]:
        """What the report keeps: counters' growth, gauges' mean and maximum over the window."""
        result: dict[str, float] = {}
        for key, name in (
            ("preemptions", "num_preemptions_total"),
            ("prompt_tokens", "prompt_tokens_total"),
            ("generation_tokens", "generation_tokens_total"),
        ):
            if (value := self.growth(name)) is not None:
                result[key] = value
        for key, above, below in (
            ("prefix_hit_rate", "prefix_cache_hits_total", "prefix_cache_queries_total"),
            ("iteration_tokens_mean", "iteration_tokens_total_sum", "iteration_tokens_total_count"),
            ("draft_acceptance", "spec_decode_num_accepted_tokens_total", "spec_decode_num_draft_tokens_total"),
        ):
            top, bottom = self.growth(above), self.growth(below)
            if top is not None and bottom:
                result[key] = top / bottom
        for key, names in (
            ("kv_usage", ("kv_cache_usage_perc", "gpu_cache_usage_perc")),
            ("running", ("num_requests_running",)),
            ("waiting", ("num_requests_waiting",)),
        ):
            series = [r.values[name] for r in self.readings for name in names if name in r.values]
            if series:
                result[f"{key}_mean"] = sum(series) / len(series)
                result[f"{key}_max"] = max(series)
        return result | self._of_each_engine()

    def _of_each_engine(self) -> dict[str, float]:
        """How several engines (data parallel ranks, or those behind a router) share the work.

        A source names them as `generation_tokens_total{engine="1"}`. The use of the KV cache, which the sum over
        engines says nothing of, is then the mean over them, and its maximum that of the fullest one.
        """
        last = self.readings[-1].values if self.readings else {}
        engines = sorted({found[1] for name in last if (found := _ENGINE.fullmatch(name)) is not None})
        if len(engines) < 2:
            return {}
        result: dict[str, float] = {}
        written = {engine: self.growth(f'generation_tokens_total{{engine="{engine}"}}') or 0.0 for engine in engines}
        result |= {f"engine_{engine}_generation_tokens": tokens for engine, tokens in written.items()}
        if total := sum(written.values()):
            result["engine_imbalance"] = max(written.values()) * len(engines) / total
        uses = [
            [reading.values.get(f'kv_cache_usage_perc{{engine="{engine}"}}', 0.0) for engine in engines]
            for reading in self.readings
        ]
        if any(map(any, uses)):
            result["kv_usage_mean"] = sum(map(sum, uses)) / (len(uses) * len(engines))
            result["kv_usage_max"] = max(map(max, uses))
        return result
