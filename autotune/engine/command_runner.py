"""The process that an engine of kind `command` is on this host: start, follow the log, stop, as the templates say.

Run by path with ``python -I -S``. The variable ``AUTOTUNE_COMMANDS`` holds JSON,
``{"start": [...], "logs": [...], "stop": [...]}``, and is not handed on. This process lives as long as the engine
does: as long as `start` runs, or, where that returned at once with code 0 (``docker run -d``, ``kubectl apply``), as
long as `logs` runs or until it is told to end.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

COMMANDS_VARIABLE = "AUTOTUNE_COMMANDS"
STOP_SECONDS = 60.0
POLL = 0.1


class Runner:
    """Runs one set of commands.

    Args:
        start, logs, stop: commands; empty for none.
    """

    def __init__(self, start: Sequence[str], logs: Sequence[str], stop: Sequence[str]) -> None:
        self._logs_command = logs
        self._stop_command = stop
        self._ending = False
        self._start = self._run(start)
        self._logs: subprocess.Popen[bytes] | None = None
        signal.signal(signal.SIGTERM, self._on_term)

    @staticmethod
    def _run(words: Sequence[str]) -> subprocess.Popen[bytes]:
        # In a session of its own: the signal to end comes from here, after the stop command, and from nowhere else.
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)

    def _on_term(self, *_: object) -> None:
        self._ending = True

    def run(self) -> int:
        """Until the engine is over; the exit code of what ended."""
        while not self._ending:
            code = self._start.poll()
            if code is not None and (code != 0 or not (self._logs_command or self._stop_command)):
                return code
            if self._logs_command and self._logs is None:
                with contextlib.suppress(OSError):
                    self._logs = self._run(self._logs_command)
            if self._logs is not None and (followed := self._logs.poll()) is not None:
                if code is not None:
                    return followed
                self._logs = None  # the log was not there yet, or ended too early: ask again
            time.sleep(POLL)
        return self._end()

    def _end(self) -> int:
        if self._stop_command:
            try:
                subprocess.run(self._stop_command, stdin=subprocess.DEVNULL, timeout=STOP_SECONDS, check=False)
            except (OSError, subprocess.TimeoutExpired) as error:
                print(f"[autotune] the stop command failed: {error}", file=sys.stderr, flush=True)
        for process in (self._start, self._logs):
            if process is not None and process.poll() is None:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._start.wait(STOP_SECONDS)
        return 0


def main() -> int:
    """Entry point."""
    commands = json.loads(os.environ.pop(COMMANDS_VARIABLE))
    try:
        runner = Runner(commands["start"], commands.get("logs") or (), commands.get("stop") or ())
    except OSError as error:
        print(f"ERROR: {commands['start'][0]}: {error.strerror}", file=sys.stderr, flush=True)
        return 127
    return runner.run()


if __name__ == "__main__":
    sys.exit(main())
