"""Every command of `autotune`, by name."""

from __future__ import annotations

from collections.abc import Callable

import typer

from autotune.cli.explain import explain
from autotune.cli.init import init
from autotune.cli.run import run
from autotune.cli.show import show
from autotune.cli.spaces import spaces
from autotune.cli.status import status
from autotune.cli.validate import validate

COMMANDS: dict[str, Callable[..., None]] = {
    "init": init,
    "validate": validate,
    "spaces": spaces,
    "run": run,
    "status": status,
    "show": show,
    "explain": explain,
}
GROUPS: dict[str, typer.Typer] = {}
