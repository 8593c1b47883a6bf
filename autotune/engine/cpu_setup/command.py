"""Run one installer command to its end: output into a log, a deadline, and nothing left when interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TERM_GRACE_S: Final = 5.0


class CommandFailed(Exception):
    """A command ended with an error or was stopped at its deadline; `tail` holds its last lines."""

    def __init__(self, reason: str, tail: Sequence[str]) -> None:
        super().__init__(reason)
        self.reason = reason
        self.tail = tuple(tail)


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs commands in their own process group.

    Attributes:
        log: file that the output is appended to.
        environ: the whole environment of the commands.
        keep_open: descriptors that the commands inherit (the lock of the set-up).
    """

    log: Path
    environ: Mapping[str, str]
    keep_open: tuple[int, ...] = ()

    def run(self, argv: Sequence[str | Path], *, limit_s: float, accept: tuple[int, ...] = (0,)) -> None:
        """Run ``argv`` to its end.

        Raises:
            CommandFailed: exit status not in ``accept``, or not finished within ``limit_s`` seconds.
        """
        words = [str(word) for word in argv]
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(words)}\n")
            log.flush()
            start = self.log.stat().st_size
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(self.environ),
                pass_fds=self.keep_open,
                start_new_session=True,
            )
            try:
                status = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                raise CommandFailed(f"not finished after {limit_s:.0f} s", self._tail(start)) from None
            finally:
                if process.returncode is None:
                    _stop_group(process)
        if status not in accept:
            raise CommandFailed(f"exit status {status}", self._tail(start))

    def _tail(self, start: int, lines: int = 12) -> list[str]:
        with self.log.open("rb") as log:
            log.seek(start)
            text = log.read().decode("utf-8", errors="replace")
        return [line for line in text.splitlines() if line.strip()][-lines:]


def _stop_group(process: subprocess.Popen[bytes]) -> None:
    """Stop a command and all that it started, and wait for it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(TERM_GRACE_S)
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()
