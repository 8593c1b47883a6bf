"""Every command of `autotune`, by name, in the order in which `--help` shows them."""

from __future__ import annotations

from collections.abc import Callable

import typer

from autotune.cli.adopt import adopt
from autotune.cli.approve import approve
from autotune.cli.bench import bench
from autotune.cli.clean import clean
from autotune.cli.dashboard import dashboard
from autotune.cli.doctor import doctor
from autotune.cli.explain import explain
from autotune.cli.export import export
from autotune.cli.history import history
from autotune.cli.init import init
from autotune.cli.lint import lint
from autotune.cli.load import load
from autotune.cli.plan import plan
from autotune.cli.report import report
from autotune.cli.retune import retune
from autotune.cli.rollback import rollback
from autotune.cli.run import run
from autotune.cli.schedule import schedule
from autotune.cli.show import show
from autotune.cli.spaces import spaces
from autotune.cli.status import status
from autotune.cli.validate import validate

COMMANDS: dict[str, Callable[..., None]] = {
    "init": init,
    "adopt": adopt,
    "validate": validate,
    "spaces": spaces,
    "doctor": doctor,
    "plan": plan,
    "run": run,
    "status": status,
    "show": show,
    "report": report,
    "dashboard": dashboard,
    "export": export,
    "retune": retune,
    "schedule": schedule,
    "approve": approve,
    "rollback": rollback,
    "history": history,
    "lint": lint,
    "bench": bench,
    "explain": explain,
    "clean": clean,
}
GROUPS: dict[str, typer.Typer] = {"load": load}
