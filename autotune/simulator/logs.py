"""Log lines as vLLM prints them: ``(Process pid=N) LEVEL MM-DD HH:MM:SS [file.py:line] text``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TextIO


@dataclass(frozen=True)
class ProcessLog:
    """Lines of one of vLLM's processes."""

    process: str
    pid: int
    out: TextIO | None = None
    """Where lines go; None: to this process's stdout and stderr."""
    time_of_day: Callable[[], float] = time.time
    """Seconds since 1970, for the stamps."""

    def line(self, level: str, where: str, text: str) -> None:
        """One line of vLLM's own logger."""
        # Local time without zone, as vLLM writes it.
        stamp = datetime.fromtimestamp(self.time_of_day()).strftime("%m-%d %H:%M:%S")
        for part in text.split("\n"):
            self._write(False, f"({self.process} pid={self.pid}) {level} {stamp} [{where}] {part}")

    def info(self, where: str, text: str) -> None:
        """An INFO line."""
        self.line("INFO", where, text)

    def warning(self, where: str, text: str) -> None:
        """A WARNING line."""
        self.line("WARNING", where, text)

    def error(self, where: str, text: str) -> None:
        """An ERROR line."""
        self.line("ERROR", where, text)

    def web(self, text: str, *, soon: bool = True) -> None:
        """A line of the HTTP server, which has its own format; a task may write it with the next one that is needed."""
        self._write(False, f"({self.process} pid={self.pid}) INFO:     {text}", soon=soon)

    def raw(self, text: str) -> None:
        """A line of a traceback, on stderr without a stamp."""
        self._write(True, text)

    def _write(self, to_stderr: bool, text: str, *, soon: bool = True) -> None:
        out = self.out or (sys.stderr if to_stderr else sys.stdout)
        try:
            out.write(text + "\n")
            if soon or self.out is None:
                out.flush()
        except BrokenPipeError:  # whoever read the log has gone; the server goes on
            return
