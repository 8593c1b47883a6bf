"""`autotune report`: what a study found, as a file to read, send or load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from autotune.cli.terminal import terminal
from autotune.errors import SpecError
from autotune.report.content import read_content
from autotune.report.formats import FORMATS, write_report
from autotune.study import open_study


def report(
    study: Annotated[Path, typer.Argument(help="The study file.", show_default=False)],
    form: Annotated[str, typer.Option("--format", help=f"One of {', '.join(FORMATS)}.")] = "html",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The file to write. Default: report.FORMAT in the study's folder."),
    ] = None,
) -> None:
    """Write a report: one self-contained page, or Markdown, JSON, a table of all trials, a picture."""
    if form not in FORMATS:
        raise SpecError(f"{form!r} is no format of a report", hint=f"legal: {', '.join(FORMATS)}")
    opened = open_study(study)
    content = read_content(opened)
    target = out if out is not None else opened.folder / f"report.{form}"
    write_report(content, form, target)
    console = terminal()
    for sentence in content.sentences:
        console.print(Text(sentence), soft_wrap=True)
    console.print(Text(f"{target} ({target.stat().st_size / 1000:,.0f} kB)", style="dim"), soft_wrap=True)
