"""The user's own check: output to a file, a deadline, nothing left behind."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from autotune.engine.usercommand import run_user_command


async def test_output_goes_to_the_file_and_the_end_of_it_is_told(tmp_path: Path) -> None:
    log = tmp_path / "deep" / "log.txt"
    result = await run_user_command([sys.executable, "-c", "print('x' * 2000); print('end')"], {}, log=log, timeout=30)
    assert result.code == 0
    assert result.tail.endswith("end")
    assert len(result.tail) <= 400
    assert log.stat().st_size > 2000


async def test_a_command_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "child"
    script = f"sleep 60 & echo $! > {pid_file}; wait"
    result = await run_user_command(["sh", "-c", script], {}, log=tmp_path / "log", timeout=1.0)
    assert result.code == -1
    assert gone(int(pid_file.read_text()))


async def test_children_that_outlive_the_command_are_ended(tmp_path: Path) -> None:
    pid_file = tmp_path / "child"
    script = f"sleep 60 & echo $! > {pid_file}"
    result = await run_user_command(["sh", "-c", script], {}, log=tmp_path / "log", timeout=30)
    assert result.code == 0
    assert gone(int(pid_file.read_text()))


async def test_cancelling_ends_the_command(tmp_path: Path) -> None:
    pid_file = tmp_path / "self"
    task = asyncio.create_task(
        run_user_command(["sh", "-c", f"echo $$ > {pid_file}; exec sleep 60"], {}, log=tmp_path / "log", timeout=60)
    )
    async with asyncio.timeout(30):
        while not (pid_file.exists() and pid_file.read_text().strip()):  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gone(int(pid_file.read_text()))


async def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    result = await run_user_command(["/nonexistent"], {}, log=tmp_path / "log", timeout=5)
    assert result.code == 127
    assert "cannot be started" in result.tail


def gone(pid: int) -> bool:
    """No such process, or a dead one that nobody has waited for yet."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
