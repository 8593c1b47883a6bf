"""`autotune status`: how far studies are."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from autotune.cli.terminal import terminal
from autotune.errors import AutotuneError
from autotune.outcome import Broken, Infeasible, Measured, TrialRecord
from autotune.report.wording import count_text, duration_text, number_text
from autotune.result import FINAL, Recommendation, recommendation_from_json
from autotune.search.front import front_of
from autotune.search.objectives import Objectives
from autotune.search.stop import counted
from autotune.store import Store
from autotune.study import Study, open_study

NO_TIME = "–"


def status(
    studies: Annotated[
        list[Path] | None, typer.Argument(help="Study files; default: all here and in studies/.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """How far studies are: trials, outcomes, best so far, when the last trial ended."""
    rows = list(map(_described, _opened(studies)))
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    if not rows:
        typer.echo("no study here or in studies/ has results yet; start one with: autotune run STUDY")
        return
    for row in rows:
        terminal().print(Text(_sentence(row)), soft_wrap=True)


def _sentence(row: dict[str, str | int]) -> str:
    """One study in one line, for people."""
    best = next(
        (f"{name.removeprefix('best ')} {value}" for name, value in row.items() if name.startswith("best ")), ""
    )
    counts = (
        ", ".join(f"{row[kind]} {kind}" for kind in ("measured", "infeasible", "broken") if row[kind]) or "none yet"
    )
    end = f"ended: {row['end']}" if row["end"] else f"not ended, {row['searched']} of the search"
    unfinished = "; a trial is running or was interrupted" if row["unfinished"] == "yes" else ""
    last = f", last trial {row['last trial']}" if row["last trial"] != NO_TIME else ""
    return f"{row['study']}: {end}; {count_text(int(row['trials']), 'trial')} ({counts}), best {best}{last}{unfinished}"


def _opened(named: Sequence[Path] | None) -> Iterator[tuple[Study, Store]]:
    """The named studies, or all that have results here and in studies/, each once."""
    seen: set[tuple[str, str]] = set()
    for path in named or sorted((*Path().glob("*.yaml"), *Path("studies").glob("*.yaml"))):
        try:
            study = open_study(path)
            store = study.existing_store()
        except AutotuneError:
            if named:
                raise
            continue
        if (key := (study.database, study.spec.name)) in seen:
            store.close()
            continue
        seen.add(key)
        yield study, store


def _described(opened: tuple[Study, Store]) -> dict[str, str | int]:
    study, store = opened
    try:
        recommended = store.read(*FINAL, recommendation_from_json)
        return _describe(study.as_measured(store), store.history(), bool(store.interrupted()), recommended)
    finally:
        store.close()


def _describe(
    study: Study, records: tuple[TrialRecord, ...], open_trial: bool, recommended: Recommendation | None
) -> dict[str, str | int]:
    objectives = Objectives.of(study.spec)
    front = sorted(front_of(records, objectives), key=objectives.rank)
    best = (objectives.values(front[0]) or ())[0] if front else None
    last = max((record.started_at + record.seconds for record in records), default=0.0)
    virtual = study.spec.engine.virtual
    counts = {kind: sum(isinstance(r.outcome, kind) for r in records) for kind in (Measured, Infeasible, Broken)}
    return {
        "study": study.spec.name,
        "trials": len(records),
        "measured": counts[Measured],
        "infeasible": counts[Infeasible],
        "broken": counts[Broken],
        "searched": f"{len(counted(records))} of {study.spec.search.trials}",
        "end": "" if recommended is None else "something better" if recommended.proven else "keep what you run today",
        "unfinished": "yes" if open_trial else "no",
        "front": len(front),
        f"best {objectives.labels[0]}": number_text(best) if best is not None else "–",
        # A virtual clock runs ahead of ours: its times of day say nothing of how long ago that was.
        "last trial": f"{duration_text(max(0.0, time.time() - last))} ago" if last and not virtual else NO_TIME,
    }
