"""`autotune history`: what re-tuning saw, decided and did."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from autotune.cli.terminal import terminal
from autotune.retune.session import opened
from autotune.retune.state import State
from autotune.retune.timeline import Row, rows, write_plot
from autotune.study import open_study


def history(
    study: Annotated[Path, typer.Argument(help="The study file.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write canaries and versions over time to this HTML file.")] = None,
) -> None:
    """Show versions, gains, drifts and decisions with their reasons."""
    opened_study = open_study(study)
    with opened(opened_study) as session:
        entries = session.ledger.entries()
    state, happened = State.of(entries), rows(entries)
    if plot is not None:
        write_plot(opened_study.spec.name, entries, plot)
        typer.echo(f"wrote {plot}")
        return
    if as_json:
        body = {"current": state.current, "waiting": state.pending.number if state.pending else None,
                "events": [asdict(row) for row in happened],
                "versions": [asdict(version) for version in state.versions]}  # fmt: skip
        typer.echo(json.dumps(body, indent=2))
        return
    _print(state, happened, study)


def _print(state: State, happened: Sequence[Row], study: Path) -> None:
    console = terminal()
    if not happened and not state.versions:
        console.print(Text(f"no pass has run yet: autotune retune {study}"))
        return
    versions = Table(title="versions", title_justify="left", show_edge=False, header_style="dim")
    for column in ("version", "before", "gain", "claim", ""):
        versions.add_column(column)
    for one in state.versions:
        mark = "deployed" if one.number == state.current else "waits" if one == state.pending else ""
        gain = f"x{one.gains[0][1]:.3f}" if one.gains else ""
        versions.add_row(str(one.number), str(one.before or ""), gain, Text(one.sentence), mark)
    console.print(versions)
    events = Table(title="passes, and what people did (UTC)", title_justify="left", show_edge=False, header_style="dim")
    for column in ("ended", "", "version, cost"):
        events.add_column(column, no_wrap=True)
    events.add_column("reasons")
    for row in happened:
        facts = [str(row.version), row.gain.replace(" [", "\n["), f"{row.gpu_hours:.2f} GPU h" if row.gpu_hours else ""]
        events.add_row(row.at, row.verdict, "\n".join(filter(None, facts)), Text("\n".join(row.reasons)))
    console.print()
    console.print(events)
