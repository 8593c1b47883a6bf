"""A tuner to be killed: starts an engine, says what it has, and waits. ``tuner.py FOLDER FAULT``."""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from conftest import simulated

from autotune.engine.protocol import Lease, StartFailure
from autotune.engine.registry import create_engine
from autotune.host.leases import LeaseBook
from autotune.space.config import EngineConfig


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def main() -> None:
    folder, fault = Path(sys.argv[1]), sys.argv[2]
    LeaseBook().take(("gpu-pretended",), "fault")
    engine = create_engine(simulated(fault))
    result = await engine.start(
        EngineConfig(), Lease((), 0), folder=folder, on_phase=lambda name: print(name, flush=True)
    )
    if isinstance(result, StartFailure):
        print("failed", result.failure.reason, flush=True)
        return
    pids = result.processes()
    main_pid = next(pid for pid in pids if parent(pid) not in pids)
    print("ready", parent(main_pid), result.url.rpartition(":")[2], *pids, flush=True)
    await asyncio.sleep(600)


asyncio.run(main())
