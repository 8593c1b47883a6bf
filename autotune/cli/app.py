"""The entry point. It imports little: until the commands are loaded, Ctrl-C just ends the process."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

from autotune.errors import NO_ROOM, AutotuneError, EnvironmentFault

if TYPE_CHECKING:
    from typer import Typer


def main() -> None:
    """Run the command line: turns our errors into a message and an exit code, never into a traceback."""
    app = _loaded()
    try:
        app()
    except AutotuneError as error:
        _end(error)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still to be printed would fail again at the end
        where = error.filename or "standard output"
        _end(EnvironmentFault(f"{where} cannot be written: {error.strerror}", hint="make room there (df -h)"))


def _end(error: AutotuneError) -> NoReturn:
    from rich.markup import escape

    from autotune.cli.terminal import terminal

    terminal(stderr=True, markup=True).print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
    sys.exit(error.exit_code)


def _loaded() -> Typer:
    """The commands. They take seconds to load on a busy host, where Ctrl-C would be a traceback; nothing runs yet."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # a shell that runs us in the background has Ctrl-C ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from autotune.cli.commands import app

    signal.signal(signal.SIGINT, before)
    return app
