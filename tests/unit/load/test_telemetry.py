"""GPU figures over the window."""

from __future__ import annotations

import pytest

from autotune.load.measure import measure
from autotune.load.telemetry import GpuSample, GpuWatch, NvmlSampler
from autotune.spec.study import LoadSpec, WarmupSpec, WindowSpec


class TwoCards:
    """One card works, the other waits."""

    def __init__(self) -> None:
        self.closed = False

    def sample(self) -> list[GpuSample]:
        return [GpuSample(90, 70e9, 600, 1700, True, 4), GpuSample(30, 20e9, 200, 1900, False, 5)]

    def close(self) -> None:
        self.closed = True


async def test_figures_and_tokens_per_joule(start_server, client, tmp_path):
    server = await start_server()
    cards = TwoCards()
    load = LoadSpec(
        input_tokens=8, output_tokens=4, levels=[2], warmup=WarmupSpec(requests=2, max_duration=1),
        window=WindowSpec(duration=0.6),
    )  # fmt: skip
    (level,) = (await measure(server.target, load, trial_seed=1, folder=tmp_path, client=client, sampler=cards)).levels
    engine = dict(level.engine)
    assert engine["gpu_power_watts"] == 800
    assert engine["gpu_imbalance"] == 60
    assert engine["gpu_memory_max_bytes"] == 70e9
    assert engine["gpu_throttled_share"] == 0.5
    assert (engine["gpu_4_utilisation_mean"], engine["gpu_5_utilisation_mean"]) == (90, 30)
    assert (engine["gpu_4_memory_max_bytes"], engine["gpu_5_power_watts"]) == (70e9, 200)
    rate = level.estimate("output_throughput").value
    assert level.estimate("tokens_per_joule").value == pytest.approx(rate / 800)
    assert "the GPUs were busy for 60% of the window: they waited for their host" in level.notes
    assert cards.closed


def test_a_host_without_gpus_gives_nothing():
    watch = GpuWatch(NvmlSampler(()))
    watch.start()
    watch.finish()
    watch.finish()
    assert watch.figures() == {}
