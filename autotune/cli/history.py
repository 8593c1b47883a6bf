"""`autotune history`: what re-tuning saw, decided and did."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.retune.ledger import State
from autotune.retune.session import opened
from autotune.retune.timeline import rows, write_plot
from autotune.study import open_study


def history(
    study: Annotated[Path, typer.Argument(help="The study file.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write canaries and versions over time to this HTML file.")] = None,
) -> None:
    """Show versions, gains, drifts and decisions with their reasons."""
    opened_study = open_study(study)
    with opened(opened_study) as session:
        state = session.state
    if plot is not None:
        write_plot(opened_study.spec.name, state, plot)
        typer.echo(f"wrote {plot}")
        return
    if as_json:
        body = {"current": state.current, "waiting": state.pending.number if state.pending else None,
                "passes": [asdict(row) for row in rows(state)],
                "versions": [asdict(version) for version in state.versions]}  # fmt: skip
        typer.echo(json.dumps(body, indent=2))
        return
    _print(state, study)


def _print(state: State, study: Path) -> None:
    console = Console()
    if not state.passes and not state.versions:
        console.print(Text(f"no pass has run yet: autotune retune {study}"))
        return
    versions = Table(title="versions", title_justify="left", show_edge=False, header_style="dim")
    for column in ("version", "before", "gain", "claim", ""):
        versions.add_column(column)
    for one in state.versions:
        mark = "deployed" if one.number == state.current else "waits" if one == state.pending else ""
        gain = f"x{one.gains[0][1]:.3f}" if one.gains else ""
        versions.add_row(str(one.number), str(one.before or ""), gain, Text(one.sentence), mark)
    passes = Table(title="passes (UTC)", title_justify="left", show_edge=False, header_style="dim")
    for column in ("ended", "verdict", "version", "gain", "GPU hours", "reasons"):
        passes.add_column(column)
    for row in rows(state):
        reasons = Text("\n".join(row.reasons))
        passes.add_row(row.at, row.verdict, str(row.version), row.gain, f"{row.gpu_hours:.2f}", reasons)
    console.print(versions)
    console.print()
    console.print(passes)
