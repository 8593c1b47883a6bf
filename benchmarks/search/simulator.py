"""The project's own simulator as a surface: its scheduler in virtual time instead of a formula.

It has what the formulas lack: requests that wait for each other, blocks that run out, preemptions, the simulator's own
refusals and out-of-memory deaths. Its space is small enough to be measured completely, so that the best is known.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from autotune.simulator.config import resolve
from autotune.simulator.core import SimulatedRequest, Workload, percentile, simulate
from autotune.simulator.failures import ConfigRefusal, EngineFailure
from autotune.simulator.memory import plan
from autotune.space.config import EngineConfig, FrozenValue
from autotune.space.expression import parse_expression
from autotune.space.space import Parameter, SearchSpace
from benchmarks.search.study import Figures, Names, SimulatedStudy

PARAMETERS = (
    Parameter("max_num_seqs", "ladder", (16, 32, 64, 128, 256), ordered=True),
    Parameter("max_num_batched_tokens", "ladder", (512, 1024, 2048, 4096, 8192, 16384), ordered=True),
    Parameter("quantization", "choice", ("none", "fp8")),
    Parameter("kv_cache_dtype", "choice", ("auto", "fp8")),
    Parameter("enforce_eager", "switch", (False, True)),
    Parameter("gpu_memory_utilization", "ladder", (0.7, 0.9, 0.96), ordered=True),
)
BASELINE: dict[str, FrozenValue] = {
    "max_num_seqs": 256, "max_num_batched_tokens": 2048, "quantization": "none", "kv_cache_dtype": "auto",
    "enforce_eager": False, "gpu_memory_utilization": 0.9,
}  # fmt: skip


@dataclass(frozen=True)
class SimulatorSurface:
    """One simulated card under a closed loop (throughput) and arrivals at random (p95 TTFT).

    Lengths in tokens, times in seconds; `sent` requests arrive at the mean rate.
    """

    name: str = "simulator"
    model: str = "llama-3.1-8b"
    card: str = "h100"
    concurrency: int = 96
    prompt: int = 900
    answer: int = 60
    rate_per_s: float = 16.0
    sent: int = 96
    slo_s: float = 0.065
    gpus: int = 1
    gate: float = math.inf
    held_out: bool = False


SIMULATOR = SimulatorSurface()


def simulator_space() -> SearchSpace:
    return SearchSpace("simulator", PARAMETERS, requires=(parse_expression("max_num_batched_tokens >= max_num_seqs"),))


@cache
def figures(surface: SimulatorSurface, values: tuple[FrozenValue, ...]) -> Figures:
    """What the simulated engine does, without noise. `values` in the order of `PARAMETERS`."""
    flags = {parameter.name: value for parameter, value in zip(PARAMETERS, values, strict=True)}
    flags = {"model": surface.model, "max_model_len": 4096, **flags}
    if flags["quantization"] == "none":
        del flags["quantization"]
    try:
        settings = resolve(flags, surface.card, surface.gpus)  # type: ignore[arg-type]
        plan(settings)
    except (ConfigRefusal, EngineFailure):
        return Figures(1.0, 60.0, 0.0, 1)
    arrivals = np.cumsum(np.random.default_rng(3).exponential(1 / surface.rate_per_s, surface.sent))
    requests = tuple(SimulatedRequest(surface.prompt, surface.answer, None, float(time)) for time in arrivals)
    try:
        loop = Workload.closed_loop(surface.concurrency, 2 * surface.concurrency, surface.prompt, surface.answer)
        closed = simulate(settings, loop)
        opened = simulate(settings, Workload(requests))
    except EngineFailure:
        return Figures(1.0, 60.0, 0.0, 2)
    late = [one.ttft_s for one in opened.requests[surface.sent // 8 :]]
    return Figures(closed.output_tokens_per_s, percentile(late, 95), 0.0, 0)


def every_good(surface: SimulatorSurface) -> np.ndarray:
    """Throughput and TTFT of every configuration that serves. Shape: configurations, 2."""
    space = simulator_space()
    rows = []
    for values in itertools.product(*(parameter.values for parameter in PARAMETERS)):
        point = dict(zip([parameter.name for parameter in PARAMETERS], values, strict=True))
        if not space.violations(point):
            found = figures(surface, values)
            if found.failed == 0:
                rows.append((found.throughput, found.ttft_s))
    return np.asarray(rows)


class SimulatorStudy(SimulatedStudy):
    """A study on the simulator; costs, noise and live changes are those of the other surfaces."""

    names = Names(
        live=frozenset({"max_num_seqs", "max_num_batched_tokens"}),
        compiles=("quantization", "kv_cache_dtype", "max_num_batched_tokens", "enforce_eager"),
        utilization="gpu_memory_utilization", seqs="max_num_seqs", batched="max_num_batched_tokens",
    )  # fmt: skip

    @cached_property
    def space(self) -> SearchSpace:
        return simulator_space()

    def baseline_point(self) -> dict[str, FrozenValue]:
        return dict(BASELINE)

    def expert_points(self) -> list[dict[str, FrozenValue]]:
        changes: tuple[dict[str, FrozenValue], ...] = (
            {"max_num_batched_tokens": 8192}, {"quantization": "fp8"},
            {"gpu_memory_utilization": 0.96, "max_num_seqs": 128},
            {"kv_cache_dtype": "fp8"}, {"max_num_seqs": 64, "max_num_batched_tokens": 4096},
        )  # fmt: skip
        return [{**BASELINE, **one} for one in changes]

    def refuse(self, config: EngineConfig) -> str | None:
        """Nothing: the simulator's own memory model would know everything."""
        return None

    def figures(self, point: Mapping[str, FrozenValue], started: Mapping[str, FrozenValue]) -> Figures:
        assert isinstance(self.surface, SimulatorSurface)
        # What an engine allocates at its start is taken for the same after a live change.
        return figures(self.surface, tuple(point[parameter.name] for parameter in PARAMETERS))
