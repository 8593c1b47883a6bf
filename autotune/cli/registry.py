"""Every command of `autotune`, by name."""

from __future__ import annotations

from collections.abc import Callable

import typer

from autotune.cli.run import run
from autotune.cli.show import show
from autotune.cli.status import status

COMMANDS: dict[str, Callable[..., None]] = {
    "run": run,
    "status": status,
    "show": show,
}
GROUPS: dict[str, typer.Typer] = {}
