"""An engine and a load client run where they were put, with everything that they start."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from autotune.engine.supervised import launch
from autotune.load.client import LoadClient

CPUS = sorted(os.sched_getaffinity(0))
needs_two = pytest.mark.skipif(len(CPUS) < 2, reason="needs two processors")
SHOW = "import os; print(*os.sched_getaffinity(0))"
SAYS = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SHOW!r}])"


@needs_two
async def test_an_engine_and_its_children_are_bound(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    job = await launch(
        [sys.executable, "-c", SAYS], dict(os.environ), folder=tmp_path, log=log, grace=1.0, cpus=(CPUS[1],)
    )
    try:
        async with asyncio.timeout(20):
            await job.wait_over()
    finally:
        await job.stop(1.0)
    assert log.read_text().split() == [str(CPUS[1])]


@needs_two
async def test_a_processor_that_is_not_there_is_a_refusal(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    job = await launch([sys.executable, "-c", "pass"], {}, folder=tmp_path, log=log, grace=1.0, cpus=(4095,))
    try:
        assert job.refused is not None
    finally:
        await job.stop(1.0)


@needs_two
async def test_a_load_client_is_bound() -> None:
    async with LoadClient(1, cpus=(CPUS[0],)) as client:
        (pid,) = client.pids
        assert os.sched_getaffinity(pid) == {CPUS[0]}
