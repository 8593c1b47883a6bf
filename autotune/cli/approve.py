"""`autotune approve`: a person agrees to a version that waits."""

from __future__ import annotations

import getpass
import time
from pathlib import Path
from typing import Annotated

import typer

from autotune.errors import SpecError
from autotune.retune.ledger import Approval
from autotune.retune.session import opened
from autotune.study import open_study


def approve(
    study: Annotated[Path, typer.Argument(help="The study file.", show_default=False)],
    version: Annotated[int | None, typer.Argument(help="Version number. Default: the one that waits.")] = None,
    refuse: Annotated[bool, typer.Option("--refuse", help="Do not deploy it.")] = False,
) -> None:
    """Agree to a version that waits; the next pass (or `autotune retune`) deploys it in its window."""
    with opened(open_study(study)) as session:
        pending = session.state.pending
        if pending is None or (version is not None and version != pending.number):
            waits = f"version {pending.number} waits" if pending else "nothing waits"
            wanted = f"version {version}" if version is not None else "a version"
            raise SpecError(f"{wanted} does not wait for approval", hint=f"{waits}; see: autotune history {study}")
        session.ledger.add(Approval(pending.number, not refuse, _user(), time.time()))
    word = (
        "refused: it will not be deployed"
        if refuse
        else f"approved; deploy it now with: autotune retune {study} --anytime"
    )
    typer.echo(f"version {pending.number} is {word}")
    typer.echo(pending.sentence)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
