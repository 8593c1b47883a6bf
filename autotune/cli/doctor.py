"""`autotune doctor`: what will spoil a study on this host, each with the fix."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from autotune.cli.terminal import terminal
from autotune.engine import cpu_setup
from autotune.engine.cleanup import find_leftovers
from autotune.engine.recipe import expand
from autotune.errors import SpecError
from autotune.host.doctor import diagnose, exit_code
from autotune.host.findings import Finding, Level, error, warning
from autotune.quality.finalist import finals_of
from autotune.spec.study import StudySpec
from autotune.study import open_study

_SIGNS = {
    Level.ERROR: "[bold red]error[/]  ",
    Level.WARNING: "[yellow]warning[/]",
    Level.NOTE: "[dim]note[/]   ",
    Level.OK: "[green]ok[/]     ",
}


def doctor(
    study: Annotated[Path | None, typer.Argument(help="Study file; without one, only the host is examined.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Say what will spoil a study on this host before it starts, each with the fix. Exit code 1: an error was found."""
    findings = _findings(study)
    code = exit_code(findings)
    if as_json:
        typer.echo(json.dumps({"findings": [asdict(finding) for finding in findings], "exit_code": code}, indent=2))
    else:
        console = terminal(markup=True)
        for finding in findings:
            console.print(f"{_SIGNS[finding.level]} {finding.check}: {escape(finding.text)}", soft_wrap=True)
            if finding.fix:
                console.print(f"        {escape(finding.fix)}", soft_wrap=True)
    if code:
        raise typer.Exit(code)


def _findings(path: Path | None) -> tuple[Finding, ...]:
    left = find_leftovers()
    found = diagnose() if path is None else _of_study(path)
    if left.empty:
        return found
    text = f"{len(left.processes)} processes and {len(left.folders)} folders are left of earlier runs"
    return (warning("leftovers", text, "`autotune clean` ends and removes them."), *found)


def _of_study(path: Path) -> tuple[Finding, ...]:
    study = open_study(path)
    spec, python = study.spec, None
    if spec.engine.python == cpu_setup.INTERPRETER_NAME and (engine := cpu_setup.locate()) is not None:
        python = engine.python
        if spec.model == cpu_setup.MODEL_NAME:
            spec = spec.model_copy(update={"model": str(engine.model)})
    return (*_unread(spec, path.parent), *diagnose(spec, python=python, folder=study.folder))


def _unread(spec: StudySpec, beside: Path) -> Iterator[Finding]:
    """What a run would miss later: variables when its first engine starts, questions when its gate is made."""

    def variables() -> None:
        expand((*spec.engine.env.items(), *spec.baseline.env.items()))

    def questions() -> None:
        finals_of(spec.quality.tasks, spec.quality.command, model=spec.model, concurrency=1, beside=beside)

    for check, read in (("variables", variables), ("quality", questions)):
        try:
            read()
        except SpecError as problem:
            place = f"{problem.file}: " if problem.file else ""
            yield error(check, f"{place}{problem.message}", problem.hint or "")
