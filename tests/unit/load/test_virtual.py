"""The load client in virtual time measures what the simulator's own event queue says, and is never late."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from autotune.engine.protocol import Lease, StartFailure
from autotune.engine.registry import create_engine
from autotune.load.client import LoadClient
from autotune.load.measure import measure
from autotune.load.report import LevelReport, Target
from autotune.load.wire import RECORD_FIELDS
from autotune.simulator.core import Workload, simulate
from autotune.space.config import EngineConfig
from autotune.spec.study import LoadSpec, StudySpec
from autotune.virtualtime import VirtualLoop

MODEL = "llama-3.1-8b"
LIMITS = {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "enable_prefix_caching": False}


def measured(folder: Path, **load: object) -> tuple[LevelReport, np.ndarray]:
    """The report of one level, and its requests as rows of `RECORD_FIELDS`."""
    engine = {"kind": "simulated", "simulate": {"clock": "virtual", "noise": 0}}
    spec = StudySpec.model_validate({"name": "v", "model": MODEL, "engine": engine})

    async def work() -> LevelReport:
        running = await create_engine(spec).start(EngineConfig.of(LIMITS), Lease((), 0), folder=folder)
        assert not isinstance(running, StartFailure)
        target = Target(running.url, running.served_model, running.api_key, running.time_scale, 128_000)
        async with LoadClient(virtual=True) as client:
            given = LoadSpec.model_validate({"input_tokens": 512, "output_tokens": 64, **load})
            report = await measure(target, given, trial_seed=1, folder=folder, client=client, metrics=running.metrics)
        await running.stop()
        return report.levels[0]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        level = runner.run(work())
    with np.load(folder / "level-0.npz") as kept:
        return level, kept["rows"]


def figure(level: LevelReport, name: str) -> float:
    found = level.estimate(name)
    assert found is not None
    return found.value


def test_a_closed_loop_is_what_the_simulation_says(tmp_path: Path) -> None:
    level, _ = measured(tmp_path, levels=[8], window={"duration": "4s"}, warmup={"requests": 16})
    assert level.invalid == () and level.errors == 0
    expected = simulate({"model": MODEL, **LIMITS}, Workload.closed_loop(8, 64, 512, 64), card="h100")
    assert figure(level, "output_throughput") == pytest.approx(expected.output_tokens_per_s, rel=0.03)
    assert figure(level, "tpot_p50_ms") == pytest.approx(1000 * expected.tpot_percentile_s(50), rel=0.03)
    assert figure(level, "ttft_p90_ms") == pytest.approx(1000 * expected.ttft_percentile_s(90), rel=0.1)


def test_waves_that_begin_before_the_window_hold_the_requests_that_were_asked_for(tmp_path: Path) -> None:
    """The warm-up ends with the last of a burst, and the three waves with the first of the third burst after it."""
    given = {"input_tokens": 2048, "output_tokens": 384, "levels": [16], "window": {"requests": 46}}
    level, _ = measured(tmp_path, **given)
    assert level.stopped is None and level.invalid == ()
    assert level.requests == 48


def test_the_longest_window_keeps_the_piece_of_a_wave_that_it_needs(tmp_path: Path) -> None:
    """In 5.5 s 45 requests end, two whole waves of them; what is asked for was measured all the same."""
    lengths = {"kind": "uniform", "low": 64, "high": 448}
    level, _ = measured(tmp_path, levels=[16], output_tokens=lengths, window={"requests": 40, "max_duration": 5.5})
    assert level.stopped is None and level.invalid == ()
    assert level.requests >= 40 and level.window_s == pytest.approx(5.5, abs=0.1)


def test_a_window_of_bursts_has_their_rate_wherever_it_begins(tmp_path: Path) -> None:
    """Bursts come every 2 s: a window of 5 s would hold two of them or three."""
    level, _ = measured(tmp_path, arrivals="bursts", burst=8, levels=[4], window={"duration": "5s"})
    assert level.invalid == () and level.window_s == pytest.approx(6)
    assert figure(level, "output_throughput") == pytest.approx(4 * 64, rel=0.001)


def test_an_open_loop_sends_when_it_is_due(tmp_path: Path) -> None:
    level, rows = measured(tmp_path, arrivals="poisson", levels=[10], window={"duration": "4s"})
    assert level.invalid == ()
    due, sent = (rows[:, RECORD_FIELDS.index(name)] for name in ("due", "sent"))
    assert len(rows) > 40
    assert np.abs(sent - due).max() < 1e-5, "seconds"
