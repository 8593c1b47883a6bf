"""`autotune export`: files that start what a study found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from autotune.errors import SpecError
from autotune.export.pick import PICKS, read_export, renamed
from autotune.export.registry import EXPORTERS
from autotune.export.values import ExportFile, ExportInput
from autotune.space.expression import nearest
from autotune.study import open_study


def export(
    study: Annotated[Path, typer.Argument(help="The study file.", show_default=False)],
    format: Annotated[str, typer.Option("--format", "-f", help=f"One of {', '.join(EXPORTERS)}.")] = "vllm-yaml",
    pick: Annotated[str, typer.Option(help=f"Which configuration: {', '.join(PICKS)}.")] = "recommendation",
    out: Annotated[Path | None, typer.Option(help="A file, or a folder for several. Default: the terminal.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the deployment. Default: the study's.")] = None,
    vllm_version: Annotated[str | None, typer.Option(help="Write for this vLLM. Default: the one measured.")] = None,
) -> None:
    """Write the files that start what a study found, each with its evidence as a comment."""
    if format not in EXPORTERS:
        near = nearest(format, EXPORTERS)
        hint = f"did you mean {near}? " if near else ""
        raise SpecError(f"there is no export format {format!r}", hint=f"{hint}formats: {', '.join(EXPORTERS)}")
    recommendation = read_export(open_study(study), pick, vllm_version)
    if name is not None:
        recommendation = renamed(recommendation, name)
    _warn(recommendation)
    files = EXPORTERS[format].render(recommendation)
    if out is None:
        _print(files)
        return
    for path in _write(files, out):
        Console(stderr=True).print(f"wrote {escape(str(path))}", highlight=False, soft_wrap=True)


def _warn(recommendation: ExportInput) -> None:
    console = Console(stderr=True)
    evidence = recommendation.evidence
    texts = list(evidence.warnings)
    if evidence.simulated:
        texts.insert(0, "the study was simulated: these settings were never measured on a GPU")
    for text in texts:
        console.print(f"[bold yellow]warning:[/] {escape(text)}", highlight=False, soft_wrap=True)
    for note in recommendation.notes:
        console.print(f"note: {escape(note)}", highlight=False, soft_wrap=True)


def _print(files: tuple[ExportFile, ...]) -> None:
    typer.echo(files[0].text, nl=False)
    for file in files[1:]:
        typer.echo(f"\n# --- {file.path}\n{file.text}", nl=False)


def _write(files: tuple[ExportFile, ...], out: Path) -> list[Path]:
    """One file goes to `out` itself unless that is a folder; several go into the folder `out`."""
    single = len(files) == 1 and not out.is_dir() and out.suffix != ""
    targets = [(out if single else out / file.path, file.text) for file in files]
    for path, text in targets:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise SpecError(f"cannot write {path}: {error.strerror}", hint="give another --out") from error
    return [path for path, _ in targets]
