"""`autotune spaces`: which search spaces there are, and what one of them holds."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table

from autotune.cli.terminal import terminal
from autotune.space.catalogue import SpaceContext, list_spaces, load_space
from autotune.space.space import Parameter


def spaces(
    name: Annotated[str | None, typer.Argument(help="Show the settings of this one (a name or a path).")] = None,
    gpus: Annotated[
        int, typer.Option(min=0, help="GPUs of a trial, which decide the layouts; 0 for the CPU engine.")
    ] = 1,
    experts: Annotated[int, typer.Option(min=0, help="Experts of the model, for the layouts; 0 for a dense one.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """List the search spaces, your own and the shipped ones, or the settings of one."""
    if name is None:
        _list(as_json)
    else:
        _show(name, SpaceContext(gpus=gpus, model={"num_experts": experts or None}), as_json)


def _list(as_json: bool) -> None:
    found = list_spaces()
    if as_json:
        rows = [
            {"name": item.name, "path": str(item.path), "shipped": item.shipped, "description": item.description}
            for item in found
        ]
        typer.echo(json.dumps(rows, indent=1))
        return
    table = Table("name", "made for", "file", show_edge=False, header_style="dim")
    for item in found:
        table.add_row(item.name, item.description, "shipped" if item.shipped else str(item.path))
    terminal().print(table)


def _show(name: str, context: SpaceContext, as_json: bool) -> None:
    space = load_space(name, context)
    if as_json:
        rows = [
            {"name": p.name, "kind": p.kind, "values": p.values, "when": p.when.text if p.when else None}
            for p in space.parameters
        ]
        typer.echo(json.dumps({"name": space.name, "size": space.size, "parameters": rows}, indent=1))
        return
    table = Table("setting", "values", "only where", "what it does", show_edge=False, header_style="dim")
    for parameter in space.parameters:
        when = parameter.when.text if parameter.when else ""
        table.add_row(parameter.name, _values(parameter), when, parameter.description)
    console = terminal()
    console.print(table)
    for relation in space.requires:
        console.print(f"must hold: {relation.text}", style="dim")
    typer.echo(f"{space.size:,} points at most")


def _values(parameter: Parameter) -> str:
    return ", ".join("default" if value is None else str(value) for value in parameter.values)
