"""`autotune retune`: one pass."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from autotune.assembly import StudyParts
from autotune.cli.terminal import terminal
from autotune.cli.views import PlainView
from autotune.engine.giveway import cancel_on_signals
from autotune.events import Observer, Silent
from autotune.report.wording import duration_text
from autotune.retune.session import Session, opened
from autotune.retune.verdict import Ending, Verdict
from autotune.study import open_study

CODES = {Verdict.ALERT: 1, Verdict.ROLLED_BACK: 1, Verdict.GAVE_WAY: 75, Verdict.BLOCKED: 75}
"""Exit codes; 75 is `temporary failure` of sysexits: run it again later."""


def retune(
    study: Annotated[Path, typer.Argument(help="The study file of a study that has been run.", show_default=False)],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done; start and change nothing.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Tune again although nothing has triggered.")] = False,
    anytime: Annotated[bool, typer.Option("--anytime", help="Outside the maintenance windows too.")] = False,
    setting: Annotated[list[str] | None, typer.Option("--set", help="Override a key of the study file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The decision as one JSON object.")] = False,
) -> None:
    """Look whether a tuned configuration still holds; tune again and promote where it does not (docs/retune.md)."""

    def watch(parts: StudyParts) -> Observer:
        return Silent() if as_json else PlainView(parts.objectives, parts.baseline, sys.stderr)

    with opened(open_study(study, setting or []), watch) as session:
        ending = asyncio.run(_run(session, dry_run=dry_run, force=force, anytime=anytime))
    if ending is None:
        print("gave way: engines are stopped, finished trials are kept, the next pass goes on", file=sys.stderr)
        raise typer.Exit(130)
    show(ending, as_json=as_json)
    if code := CODES.get(ending.verdict, 0):
        raise typer.Exit(code)


async def _run(session: Session, *, dry_run: bool, force: bool, anytime: bool) -> Ending | None:
    """None where a signal asked to give way."""
    cancel_on_signals()
    triggers = session.spec.triggers
    if triggers.metrics_url and not triggers.prometheus_url:
        watched = f"watched for {duration_text(triggers.watched)} where no earlier pass has read it"
        print(f"asking {triggers.metrics_url} for its workload; it is {watched}", file=sys.stderr)
    try:
        return await session.run_now(dry_run=dry_run, force=force, anytime=anytime)
    except asyncio.CancelledError:
        return None


def show(ending: Ending, *, as_json: bool = False) -> None:
    """Print a decision with its reasons."""
    if as_json:
        typer.echo(json.dumps({"verdict": ending.verdict.value, "reasons": list(ending.reasons)}))
        return
    console = terminal()
    for reason in ending.reasons:
        console.print(Text(reason), soft_wrap=True)
    console.print(Text(ending.verdict.value, style="bold"))
