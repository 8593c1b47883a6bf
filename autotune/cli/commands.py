"""The application: every command of the registry, and what stands above them."""

from __future__ import annotations

import typer

from autotune import __version__
from autotune.cli.registry import COMMANDS, GROUPS

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
