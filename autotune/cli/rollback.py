"""`autotune rollback`: an earlier version is deployed again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.retune import show
from autotune.retune.promotion import version_to_restore
from autotune.retune.session import Session, opened
from autotune.retune.verdict import Ending, Verdict
from autotune.study import open_study


def rollback(
    study: Annotated[Path, typer.Argument(help="The study file.", show_default=False)],
    to: Annotated[int | None, typer.Option(help="Version to restore. Default: the one before the present one.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done.")] = False,
) -> None:
    """Deploy an earlier version again, with the same hooks as a promotion."""
    with opened(open_study(study)) as session:
        ending, restored = asyncio.run(_run(session, to, dry_run=dry_run))
    show(ending)
    if not restored:
        raise typer.Exit(1)


async def _run(session: Session, to: int | None, *, dry_run: bool) -> tuple[Ending, bool]:
    with session.locked():
        if not dry_run:
            await session.switch.recover()
        version = version_to_restore(session.state, to)
        if version.number == session.state.current:
            return Ending(Verdict.NOTHING, (f"version {version.number} is what is deployed",)), True
        if dry_run:
            plan = session.switch.hooks.plan()
            return Ending(Verdict.DRY, (f"version {version.number} would be deployed: {version.sentence}", *plan)), True
        ending = await session.switch.to(version, "rollback", "asked for")
        return ending, session.state.current == version.number
