"""`autotune rollback`: an earlier version is deployed again."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.retune import show
from autotune.engine.giveway import cancel_on_signals
from autotune.retune.session import Session, opened
from autotune.retune.verdict import Ending
from autotune.study import open_study


def rollback(
    study: Annotated[Path, typer.Argument(help="The study file.", show_default=False)],
    to: Annotated[int | None, typer.Option(help="Version to restore. Default: the one before the present one.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done.")] = False,
) -> None:
    """Deploy an earlier version again, with the same hooks as a promotion."""
    with opened(open_study(study)) as session:
        done = asyncio.run(_run(session, to, dry_run=dry_run))
    if done is None:
        print(f"stopped; what is deployed now: autotune history {study}", file=sys.stderr)
        raise typer.Exit(130)
    ending, restored = done
    show(ending)
    if not restored:
        raise typer.Exit(1)


async def _run(session: Session, to: int | None, *, dry_run: bool) -> tuple[Ending, bool] | None:
    """None where a signal asked to stop; a change that had begun is ended first."""
    cancel_on_signals()
    try:
        return await session.roll_back(to, dry_run=dry_run)
    except asyncio.CancelledError:
        return None
