"""`autotune show`: the trials of a study, or one of them in full."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.cli.account_text import print_account, print_refused
from autotune.cli.split_text import split_commands
from autotune.cli.terminal import terminal
from autotune.errors import SpecError
from autotune.outcome import Measured, TrialRecord
from autotune.quality.report import QualityCheck, QualityVerdict
from autotune.report.trials import reason_of
from autotune.report.wording import changes_text, duration_text, figure_text, number_text, outcome_text, value_text
from autotune.search.account import ACCOUNT, SpaceAccount
from autotune.search.front import baseline_of
from autotune.search.objectives import Objectives
from autotune.space.config import EngineConfig
from autotune.study import open_study

WIDE = 100
"""Columns of a terminal that hold the table of trials without narrow columns."""


def show(
    study: Annotated[Path, typer.Argument(help="The study file.", show_default=False)],
    trial: Annotated[int | None, typer.Option(help="Show this trial in full.")] = None,
    refused: Annotated[bool, typer.Option("--refused", help="List what was refused before a start.")] = False,
) -> None:
    """Show the trials of a study and what was never started, or one trial in full: phases, figures, log."""
    if refused and trial is not None:
        hint = "what was refused was never a trial: give one of the two"
        raise SpecError("does not go with --trial", key="--refused", hint=hint)
    opened = open_study(study)
    store = opened.existing_store()
    try:
        opened = opened.as_measured(store)
        records = store.history()
        account = store.read(*ACCOUNT, SpaceAccount.from_json)
    finally:
        store.close()
    objectives = Objectives.of(opened.spec)
    today = baseline_of(records)
    baseline = today.config if today is not None else EngineConfig()
    console = terminal()
    if refused:
        if account is None:
            raise SpecError("nothing is known of the space yet", file=study, hint="it is counted at the end of a run")
        print_refused(console, account)
        return
    if trial is None and not records:
        console.print(f"no trial has ended yet; go on with: autotune run {study}", soft_wrap=True)
        return
    if trial is None:
        console.print(_overview(records, objectives, baseline, wide=console.width >= WIDE))
        if account is not None:
            print_account(console, account)
        return
    found = next((record for record in records if record.number == trial), None)
    if found is None:
        numbers = f"0 to {records[-1].number}" if records else "none yet"
        raise SpecError(f"there is no trial {trial}", file=study, hint=f"trials of this study: {numbers}")
    _print_trial(console, found, objectives, baseline)
    _print_pairs(console, "engines", list(split_commands(opened.spec, found.config, found.gpus)))


def _overview(records: tuple[TrialRecord, ...], objectives: Objectives, baseline: EngineConfig, *, wide: bool) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2 if wide else 1, 0, 0))
    table.add_column("", no_wrap=True)
    table.add_column("origin", no_wrap=True)
    table.add_column("outcome", overflow="fold", max_width=None if wide else 12)
    for item in objectives.items:
        table.add_column(item.key.replace("_", " "), justify="right", max_width=10)
    table.add_column("took", no_wrap=True)
    table.add_column("against the baseline", overflow="fold", min_width=len("max_num_batched_tokens=1024"))
    for record in records:
        values = objectives.values(record)
        figures = [number_text(value) for value in values] if values else ["–"] * len(objectives.items)
        style = "" if objectives.feasible(record) else "dim"
        table.add_row(
            str(record.number),
            record.proposal.origin,
            outcome_text(record.outcome),
            *figures,
            duration_text(record.seconds),
            Text(changes_text(record.config, baseline)),
            style=style,
        )
    return table


def _print_trial(console: Console, record: TrialRecord, objectives: Objectives, baseline: EngineConfig) -> None:
    outcome = record.outcome
    console.print(Text(f"trial {record.number} ({record.proposal.origin}): {outcome_text(outcome)}", style="bold"))
    if record.proposal.note:
        console.print(Text(record.proposal.note, style="dim"))
    for warning in record.resolved.warnings if record.resolved else ():
        console.print(Text(f"warning: {warning}", style="yellow"))
    if reason := reason_of(record, objectives) if isinstance(outcome, Measured) else outcome.reason:
        console.print(Text(reason))
    _print_pairs(console, "configuration", [(name, value_text(value)) for name, value in record.config.args])
    _print_pairs(console, "environment variables", list(record.config.env))
    changes = record.config.changes_from(baseline)
    told = [(change.name, f"{value_text(change.before)} → {value_text(change.after)}") for change in changes]
    _print_pairs(console, "against the baseline", told)
    _print_pairs(console, "where the time went", [(name, f"{seconds:.1f} s") for name, seconds in record.stage_seconds])
    _print_pairs(console, "phases of the start", [(phase.name, f"{phase.seconds:.1f} s") for phase in record.phases])
    if isinstance(outcome, Measured):
        for level in outcome.load.levels:
            figures = [(key, figure_text(key, estimate)) for key, estimate in level.metrics]
            _print_pairs(console, f"level {level.level}: {level.requests} requests in {level.window_s:.1f} s", figures)
            for note in (f"stopped early: {level.stopped}" if level.stopped else "", *level.notes):
                if note:
                    console.print(Text(f"  {note}", style="yellow"))
            _print_pairs(
                console, "engine over the window", [(name, number_text(value)) for name, value in level.engine]
            )
        if outcome.quality is not None:
            checks = [(check.name, _check_text(check)) for check in outcome.quality.checks]
            _print_pairs(console, f"quality: {outcome.quality.verdict}", checks)
    if record.folder is not None:
        console.print(Text(f"files: {record.folder}", style="dim"))


def _check_text(check: QualityCheck) -> str:
    told = str(check.verdict)
    if check.tier not in (0, 3):  # those have no figure
        told = f"{figure_text('', check.estimate)} (limit {check.limit:g}, noise {check.noise:.2g}) {told}"
    wanted = check.note and (check.tier >= 2 or check.verdict is not QualityVerdict.PASSED)
    return f"{told}: {' '.join(check.note.split())}" if wanted else told


def _print_pairs(console: Console, title: str, pairs: list[tuple[str, str]]) -> None:
    if not pairs:
        return
    console.print(Text(f"\n{title}", style="bold"))
    width = max(len(name) for name, _ in pairs)
    for name, text in pairs:
        console.print(Text(f"  {name:<{width}}  {text}"))
