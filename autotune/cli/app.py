"""The command line: parse, call, print. Every command is one file beside this one."""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.markup import escape

from autotune import __version__
from autotune.cli.registry import COMMANDS, GROUPS
from autotune.errors import AutotuneError

app = typer.Typer(
    name="autotune",
    help="Tune vLLM on your own hardware: measure, confirm, export.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"autotune {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Tune vLLM on your own hardware: measure, confirm, export."""


for _name, _command in COMMANDS.items():
    app.command(name=_name)(_command)
for _name, _group in GROUPS.items():
    app.add_typer(_group, name=_name)


def main() -> None:
    """Entry point: turns our errors into a message and an exit code, never into a traceback."""
    try:
        app()
    except AutotuneError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)
