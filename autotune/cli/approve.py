"""`autotune approve`: a person agrees to a version that waits."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Annotated

import typer

from autotune.retune.session import opened
from autotune.study import open_study


def approve(
    study: Annotated[Path, typer.Argument(help="The study file.", show_default=False)],
    version: Annotated[int | None, typer.Argument(help="Version number. Default: the one that waits.")] = None,
    refuse: Annotated[bool, typer.Option("--refuse", help="Do not deploy it.")] = False,
) -> None:
    """Agree to a version that waits; the next pass (or `autotune retune`) deploys it in its window."""
    with opened(open_study(study)) as session:
        pending = session.decide(version, _user(), granted=not refuse)
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
