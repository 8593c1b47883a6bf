"""`autotune status`: how far studies are."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from autotune.errors import AutotuneError
from autotune.outcome import Broken, Infeasible, Measured, TrialRecord
from autotune.report.wording import duration_text, number_text
from autotune.search.front import front_of
from autotune.search.objectives import Objectives
from autotune.study import Study, open_study


def status(
    studies: Annotated[list[Path] | None, typer.Argument(help="Study files; default: all in studies/.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """How far studies are: trials, outcomes, best so far, when the last trial ended."""
    rows = [row for path in studies or sorted(Path("studies").glob("*.yaml")) if (row := _row(path, bool(studies)))]
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    if not rows:
        typer.echo("no study here has results yet; start one with: autotune run studies/quickstart.yaml")
        return
    for row in rows:
        Console().print(Text(_sentence(row)), soft_wrap=True)


def _sentence(row: dict[str, str | int]) -> str:
    """One study in one line, for people."""
    best = next(
        (f"{name.removeprefix('best ')} {value}" for name, value in row.items() if name.startswith("best ")), ""
    )
    counts = ", ".join(f"{row[kind]} {kind}" for kind in ("measured", "infeasible", "broken") if row[kind])
    unfinished = "; a trial is running or was interrupted" if row["unfinished"] == "yes" else ""
    return f"{row['study']}: {row['trials']} trials ({counts}), best {best}, last trial {row['last trial']}{unfinished}"


def _row(path: Path, named: bool) -> dict[str, str | int] | None:
    try:
        study = open_study(path)
        store = study.existing_store()
    except AutotuneError:
        if named:
            raise
        return None
    try:
        return _describe(study, store.history(), bool(store.interrupted()))
    finally:
        store.close()


def _describe(study: Study, records: tuple[TrialRecord, ...], open_trial: bool) -> dict[str, str | int]:
    objectives = Objectives.of(study.spec)
    front = sorted(front_of(records, objectives), key=objectives.rank)
    best = (objectives.values(front[0]) or ())[0] if front else None
    last = max((record.started_at + record.seconds for record in records), default=0.0)
    counts = {kind: sum(isinstance(r.outcome, kind) for r in records) for kind in (Measured, Infeasible, Broken)}
    return {
        "study": study.spec.name,
        "trials": len(records),
        "measured": counts[Measured],
        "infeasible": counts[Infeasible],
        "broken": counts[Broken],
        "unfinished": "yes" if open_trial else "no",
        "front": len(front),
        f"best {objectives.labels[0]}": number_text(best) if best is not None else "–",
        "last trial": f"{duration_text(time.time() - last)} ago" if last else "–",
    }
