"""The client processes themselves: they start fast, serve many trials, and outlive nobody."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from autotune.errors import EnvironmentFault
from autotune.load.client import LoadClient

OWNER = """
import asyncio
from autotune.load.client import LoadClient

async def main():
    async with LoadClient(2) as client:
        print(*(item.process.pid for item in client._processes), flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


async def wait_until_gone(pids: list[int], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
        assert time.monotonic() < deadline, "client processes are still there"
        await asyncio.sleep(0.02)


async def test_client_processes_die_with_a_killed_driver():
    """The driver is an unguarded script, too: it must not be run again by its children."""
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", OWNER, stdout=asyncio.subprocess.PIPE)
    assert owner.stdout is not None
    pids = [int(text) for text in (await owner.stdout.readline()).split()]
    assert len(pids) == 2 and all(psutil.pid_exists(pid) for pid in pids)
    os.kill(owner.pid, signal.SIGKILL)
    await owner.wait()
    await wait_until_gone(pids)


async def test_an_unguarded_script_is_not_run_again(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text("print('once', flush=True)\n" + OWNER.replace("sleep(60)", "sleep(0)"))
    owner = await asyncio.create_subprocess_exec(sys.executable, str(script), stdout=asyncio.subprocess.PIPE)
    out, _ = await owner.communicate()
    assert owner.returncode == 0
    assert out.count(b"once") == 1


async def test_a_terminals_interrupt_reaches_no_client_process():
    """Ctrl-C is sent to the whole group; a process that is still starting would print a traceback."""
    client = LoadClient(1)
    began = asyncio.create_task(client.__aenter__())
    await asyncio.sleep(0)
    child = psutil.Process(client._processes[0].process.pid)
    child.send_signal(signal.SIGINT)
    await began
    try:
        assert child.is_running()
    finally:
        await client.close()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


async def test_closing_leaves_nothing():
    async with LoadClient(2) as client:
        pids = [item.process.pid for item in client._processes]
    await wait_until_gone([pid for pid in pids if pid is not None], 1.0)


async def test_a_killed_client_process_is_a_fault_of_ours(start_server, tmp_path):
    from autotune.load.measure import measure
    from autotune.spec.study import LoadSpec, WindowSpec

    server = await start_server()
    async with LoadClient(1) as client:
        load = LoadSpec(input_tokens=8, output_tokens=4, levels=[2], window=WindowSpec(duration=30))
        task = asyncio.create_task(measure(server.target, load, trial_seed=1, folder=tmp_path, client=client))
        await server.until(lambda: server.active > 0)
        pid = client._processes[0].process.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EnvironmentFault, match="client process"):
            await task


def test_the_client_process_imports_little():
    """It starts for every study; numpy, pydantic and the command line have no place in it."""
    code = (
        "import sys, autotune.load.worker;"
        "print([name for name in ('numpy', 'pydantic', 'aiohttp', 'typer') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
