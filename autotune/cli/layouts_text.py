"""The layouts of a plan, for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.preflight.layouts import LayoutRow


def print_layouts(rows: Sequence[LayoutRow], console: Console, *, shared: bool = False) -> None:
    """GPUs, idle ones, links and the verdict on each layout; nothing where there is none to choose.

    Args:
        shared: GPUs that a layout leaves idle serve other trials.
    """
    if not rows:
        return
    console.print(Text("\nlayouts", style="bold"))
    table = Table(show_edge=False, header_style="dim")
    for name in ("layout", "GPUs", "idle", "link", "verdict"):
        table.add_column(name, justify="right" if name in ("GPUs", "idle") else "left", no_wrap=name == "layout")
    for row in rows:
        verdict = f"refused: {row.refused}" if row.refused else row.warning or "can be tried"
        style = "dim" if row.refused else "yellow" if row.warning else ""
        table.add_row(row.name, str(row.gpus), str(row.idle or "–"), row.link or "–", Text(verdict), style=style)
    console.print(table)
    if any(row.idle and not row.refused for row in rows):
        text = "GPUs that a layout leaves idle count in GPU hours and in figures per GPU: a trial has them all."
        if shared:
            text = "GPUs that a layout leaves idle serve other trials; each trial is charged for what its layout takes."
        console.print(Text(text, style="dim"))
