"""Runs a check of the user's own beside an engine: its output goes to a file, its whole process group ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.engine.supervisor import stat_of
from autotune.host.processes import own_pids

GRACE_S = 5.0
TAIL_CHARACTERS = 400


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended.

    Attributes:
        code: exit code; 127 where it could not be started, -1 where it ran out of time.
        seconds: how long it ran.
        tail: the end of its output.
    """

    code: int
    seconds: float
    tail: str


async def run_user_command(
    argv: Sequence[str], env: Mapping[str, str], *, log: Path, timeout: float, cwd: Path | None = None
) -> CommandResult:
    """Run a command to its end.

    Args:
        argv: the command, never a shell line.
        env: variables on top of ours. Values that the output repeats are masked in `tail` where their name has KEY.
        log: file for its output.
        timeout: seconds; then it is ended with everything that it started.
        cwd: working directory.
    """
    begin = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, env={**os.environ, **env}, stdin=asyncio.subprocess.DEVNULL, stdout=output,
                stderr=asyncio.subprocess.STDOUT, start_new_session=True, cwd=cwd,
            )  # fmt: skip
        except OSError as error:
            return CommandResult(127, 0.0, f"{argv[0]} cannot be started: {error.strerror}")
        try:
            async with asyncio.timeout(timeout):
                code = await process.wait()
        except TimeoutError:
            code = -1
        finally:
            await _end_group(process)
    return CommandResult(code, time.monotonic() - begin, _masked(_tail(log), env))


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """End what is left of the command's session; a child may outlive its parent."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not _members(process.pid):
            break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        end = time.monotonic() + GRACE_S
        while _members(process.pid) and time.monotonic() < end:  # noqa: ASYNC110 - nobody tells when others end
            await asyncio.sleep(0.02)
    await process.wait()


def _members(session: int) -> bool:
    """Whether anything lives in the session; the dead that nobody has waited for do not."""
    stats = (stat_of(pid) for pid in own_pids())
    return any(stat is not None and stat[3] == session and stat[0] not in "ZX" for stat in stats)


def _tail(log: Path) -> str:
    text = log.read_bytes()[-4 * TAIL_CHARACTERS :].decode("utf-8", "replace").strip()
    return text[-TAIL_CHARACTERS:]


def _masked(text: str, env: Mapping[str, str]) -> str:
    for name, value in env.items():
        if "KEY" in name and value:
            text = text.replace(value, "***")
    return text
