"""Stand-ins for vLLM's EngineCore and Worker processes, for tests that kill one of them.

They compute nothing. As vLLM's, they stay in the server's process group, end on SIGTERM, live on when the API server
is killed with SIGKILL, and a Worker ends when its EngineCore does. After five minutes they end by themselves, so that
a test that fails leaves nothing for long.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from types import FrameType

_LIFETIME_S = 300.0
_POLL_S = 0.25


async def start_engine_process() -> asyncio.subprocess.Process:
    """Start EngineCore, which starts its Worker."""
    return await asyncio.create_subprocess_exec(
        sys.executable, __file__, "VLLM::EngineCore", stdout=asyncio.subprocess.DEVNULL
    )


def leak_process() -> int:
    """Start a process that ignores SIGTERM and is not waited for; returns its pid."""
    leaked = subprocess.Popen([sys.executable, __file__, "VLLM::Leaked"], stdout=subprocess.DEVNULL)
    leaked.returncode = 0  # disowned on purpose: no warning when this object goes
    return leaked.pid


async def stop_engine_process(process: asyncio.subprocess.Process, grace_s: float = 0.5) -> None:
    """SIGTERM, then SIGKILL."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(grace_s):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _name(title: str) -> None:
    """Show up under a name of 15 characters in ps, as vLLM's processes do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(15, title.encode()[:15], 0, 0, 0)  # PR_SET_NAME


def _main(title: str) -> int:
    _name(title)
    worker: subprocess.Popen[bytes] | None = None
    parent = os.getppid()

    def stop(_number: int, _frame: FrameType | None) -> None:
        if worker is not None:
            worker.terminate()
        os._exit(0)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if title == "VLLM::Leaked" else stop)
    if title == "VLLM::EngineCore":
        worker = subprocess.Popen([sys.executable, __file__, "VLLM::Worker"])
    end = time.monotonic() + _LIFETIME_S
    while time.monotonic() < end:
        time.sleep(_POLL_S)
        if title == "VLLM::Worker" and os.getppid() != parent:
            break
        if worker is not None and worker.poll() is not None:
            break
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
