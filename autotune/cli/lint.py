"""`autotune lint`: what in a launch configuration costs speed or breaks."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from autotune.adopt.registry import adopt_file
from autotune.cli.adopt import (
    AsJson,
    EngineName,
    FormatName,
    PythonPath,
    StudyPath,
    Variables,
    asked_table,
    judged_by,
    variables,
    versions_differ,
)
from autotune.cli.terminal import terminal
from autotune.engine.redaction import redact
from autotune.lint.check import lint as findings_of
from autotune.lint.values import Finding, Severity

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "dim"}


def lint(
    file: Annotated[Path, typer.Argument(help="What you start vLLM with.", show_default=False)],
    format: FormatName = None,
    engine: EngineName = None,
    var: Variables = None,
    python: PythonPath = None,
    study: StudyPath = None,
    as_json: AsJson = False,
) -> None:
    """Find in a launch configuration what commonly costs speed or breaks; exit code 1 where something is an error."""
    asked = asked_table(python, study)
    adopted = adopt_file(file, table=asked.asked, format=format, engine=engine, given=variables(var or []))
    found = findings_of(adopted, asked.asked)
    if as_json:
        rows = [{key: redact(v) if isinstance(v, str) else v for key, v in asdict(one).items()} for one in found]
        words = {"version": adopted.asked, "origin": asked.origin}
        text = {"file": str(file), "format": adopted.format, "read_as": words, "findings": rows}
        typer.echo(json.dumps(text, indent=1))
    else:
        _print(file, found)
        other = versions_differ(adopted)
        said = f"held against {judged_by(adopted, asked)}" + (f"; {other}" if other else "")
        terminal(stderr=True).print(Text(said, style="dim"), soft_wrap=True)
    if any(finding.severity is Severity.ERROR for finding in found):
        raise typer.Exit(1)


def _print(file: Path, found: tuple[Finding, ...]) -> None:
    console = terminal()
    for finding in found:
        place = f"{file}:{finding.line}" if finding.line is not None else str(file)
        head = Text(f"{place}: ")
        head.append(finding.severity.value, style=_STYLES[finding.severity])
        head.append(f" {finding.rule}: {redact(finding.message)}")
        console.print(head, soft_wrap=True)
        if finding.hint:
            console.print(Text(f"    {redact(finding.hint)}"), soft_wrap=True)
        console.print(Text(f"    source: {finding.source}", style="dim"), soft_wrap=True)
    counts = {level: sum(finding.severity is level for finding in found) for level in Severity}
    summary = ", ".join(f"{count} {level}{'s' if count > 1 else ''}" for level, count in counts.items() if count)
    console.print(Text(summary or "nothing found"), soft_wrap=True)
