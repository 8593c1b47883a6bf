"""`autotune load`: make a load from what a running server sees."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated, cast

import typer

from autotune.errors import SpecError
from autotune.load.from_metrics import observe, write_load
from autotune.load.report import Target
from autotune.spec.units import parse_duration

load = typer.Typer(help="Make a load from what a running server sees.", no_args_is_help=True)


@load.callback()
def _group() -> None:
    """Make a load from what a running server sees."""


@load.command("from-metrics")
def from_metrics(
    url: Annotated[str, typer.Argument(help="Base URL of a running vLLM, such as http://127.0.0.1:8000.")],
    out: Annotated[Path, typer.Option(help="File for the `load:` section; the histograms go beside it.")],
    watch: Annotated[str | None, typer.Option(help="Watch for so long. Default: all since the server started.")] = None,
    api_key_env: Annotated[str, typer.Option(help="Environment variable with the API key.")] = "OPENAI_API_KEY",
    ca: Annotated[str, typer.Option(help="For https: PEM file with the authority, or the certificate itself.")] = "",
    insecure: Annotated[bool, typer.Option("--insecure", help="For https: believe any certificate.")] = False,
) -> None:
    """Read the lengths and the rate of a running server's requests and write a `load:` section for a study."""
    seconds = 0.0
    if watch is not None:
        try:
            seconds = float(cast(float, parse_duration(watch)))
        except ValueError as error:
            raise SpecError(str(error), key="--watch") from None
    if not out.parent.is_dir():
        raise SpecError(f"the folder {out.parent} does not exist", key="--out")
    target = Target(url, "", os.environ.get(api_key_env, ""), ca_file=ca, insecure=insecure)
    seen = asyncio.run(observe(target, seconds))
    for file in write_load(seen, out):
        typer.echo(f"wrote {file}")
    typer.echo(f"{seen.requests} requests" + (f", {seen.rate:.3g} a second" if seen.rate is not None else ""))
