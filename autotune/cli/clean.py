"""`autotune clean`: end what earlier runs of this tool left on this host."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from autotune.engine.cleanup import Leftovers, find_leftovers, remove_leftovers
from autotune.errors import EnvironmentFault


def clean(
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Only say what would be ended.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """End engines that earlier, killed runs left behind. Running studies and foreign processes are never touched."""
    found = find_leftovers()
    problems = () if dry_run else remove_leftovers(found)
    if as_json:
        typer.echo(json.dumps(_as_json(found, problems, dry_run), indent=2))
    else:
        _print(found, dry_run)
    if problems:
        raise EnvironmentFault("; ".join(problems), hint="Such a process waits in the kernel; look at `dmesg`.")


def _print(found: Leftovers, dry_run: bool) -> None:
    verb = "would end" if dry_run else "ended"
    for process in found.processes:
        typer.echo(f"{verb} process {process.pid} of run {process.run}: {process.command}")
    for folder in found.folders:
        typer.echo(f"{'would remove' if dry_run else 'removed'} {folder}")
    for name in found.shared_memory:
        typer.echo(f"{'would remove' if dry_run else 'removed'} /dev/shm/{name}")
    for run, pid in found.alive:
        typer.echo(f"left alone: run {run} is still going on (pid {pid})")
    if found.empty:
        typer.echo("nothing is left of earlier runs")


def _as_json(found: Leftovers, problems: tuple[str, ...], dry_run: bool) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "processes": [
            {"pid": process.pid, "run": process.run, "command": process.command} for process in found.processes
        ],
        "folders": [str(folder) for folder in found.folders],
        "shared_memory": list(found.shared_memory),
        "running": [{"run": run, "pid": pid} for run, pid in found.alive],
        "problems": list(problems),
    }
