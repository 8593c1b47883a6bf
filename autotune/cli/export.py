"""`autotune export`: files that start what a study found."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Annotated

import typer
from rich.text import Text

from autotune.adopt.registry import adopt_file
from autotune.cli.adopt import variables
from autotune.cli.terminal import terminal
from autotune.errors import SpecError
from autotune.export.evidence import evidence_lines
from autotune.export.patch import patch
from autotune.export.pick import PICKS, read_export, renamed
from autotune.export.registry import EXPORTERS, OPERATIONS
from autotune.export.values import ExportFile, ExportInput
from autotune.space.expression import nearest
from autotune.study import open_study

_PATCH = "patch"
_FORMATS = (*EXPORTERS, _PATCH)
_EXTRAS = ("operations",)


def export(
    study: Annotated[Path, typer.Argument(help="The study file.", show_default=False)],
    format: Annotated[str, typer.Option("--format", "-f", help=f"One of {', '.join(_FORMATS)}.")] = "vllm-yaml",
    pick: Annotated[str, typer.Option(help=f"Which configuration: {', '.join(PICKS)}.")] = "recommendation",
    out: Annotated[Path | None, typer.Option(help="A file, or a folder for several. Default: the terminal.")] = None,
    into: Annotated[Path | None, typer.Option(help="With patch: the file whose tuned arguments change.")] = None,
    extras: Annotated[
        list[str] | None, typer.Option("--with", help="operations: alerts, dashboard, Envoy, autoscaling, warm-up.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the deployment. Default: the study's.")] = None,
    vllm_version: Annotated[str | None, typer.Option(help="Write for this vLLM. Default: the one measured.")] = None,
    engine: Annotated[str | None, typer.Option(help="With patch: which server of the file.")] = None,
    var: Annotated[list[str] | None, typer.Option(help="With patch: NAME=VALUE that the file leaves open.")] = None,
) -> None:
    """Write the files that start what a study found, each with its evidence as a comment."""
    _check(format, extras or [], into)
    recommendation = read_export(open_study(study), pick, vllm_version)
    if name is not None:
        recommendation = renamed(recommendation, name)
    _warn(recommendation)
    if format == _PATCH:
        assert into is not None
        files = _patched(recommendation, into, engine, variables(var or []))
    else:
        files = EXPORTERS[format].render(recommendation)
    for _ in extras or []:
        files += tuple(file for exporter in OPERATIONS.values() for file in exporter.render(recommendation))
    if out is None:
        _print(files)
        return
    for path in _write(files, out):
        _say(f"wrote {path}")


def _check(format: str, extras: list[str], into: Path | None) -> None:
    if format not in _FORMATS:
        near = nearest(format, _FORMATS)
        hint = f"did you mean {near}? " if near else ""
        raise SpecError(f"there is no export format {format!r}", hint=f"{hint}formats: {', '.join(_FORMATS)}")
    for extra in extras:
        if extra not in _EXTRAS:
            raise SpecError(f"--with {extra!r} is unknown", hint=f"one of {', '.join(_EXTRAS)}")
    if format == _PATCH and into is None:
        raise SpecError("patch needs the file to change", hint="give it with --into, such as --into deployment.yaml")
    if into is not None and format != _PATCH:
        raise SpecError("--into goes with --format patch only", hint="leave it out, or give --format patch")


def _patched(
    recommendation: ExportInput, into: Path, engine: str | None, given: dict[str, str]
) -> tuple[ExportFile, ...]:
    """The changed file, and its evidence beside it, since the file itself stays as its owner wrote it."""
    adopted = adopt_file(into, table=recommendation.table, engine=engine, given=given)
    result = patch(adopted, recommendation.config, recommendation.baseline, recommendation.table, given)
    for change in result.changes:
        _say(f"changed: {change}")
    for text in result.by_hand:
        _say(f"by hand: {text}", "bold yellow")
    if adopted.model and adopted.model != recommendation.model:
        _say(f"warning: {into} serves {adopted.model}, the study measured {recommendation.model}", "bold yellow")
    if result.unmeasured:
        _say(f"warning: stays in {into} and was not measured: {', '.join(result.unmeasured)}", "bold yellow")
    if not result.changes and not result.by_hand:
        _say(f"{into} says all of it already")
    evidence = "".join(f"{line}\n" for line in evidence_lines(recommendation))
    beside = PurePosixPath(f"{into.name}.evidence.txt")
    return (ExportFile(PurePosixPath(into.name), result.text), ExportFile(beside, evidence))


def _warn(recommendation: ExportInput) -> None:
    texts = list(recommendation.evidence.warnings)
    if recommendation.evidence.simulated:
        texts.insert(0, "the study was simulated: these settings were never measured on a GPU")
    for text in texts:
        _say(f"warning: {text}", "bold yellow")
    for note in recommendation.notes:
        _say(f"note: {note}")


def _say(text: str, style: str = "") -> None:
    terminal(stderr=True).print(Text(text, style=style), soft_wrap=True)


def _print(files: tuple[ExportFile, ...]) -> None:
    """To a terminal or a pipe: the file itself. Evidence of a patch goes beside a file only."""
    shown = tuple(file for file in files if not file.path.name.endswith(".evidence.txt"))
    typer.echo(shown[0].text, nl=False)
    for file in shown[1:]:
        typer.echo(f"\n# --- {file.path}\n{file.text}", nl=False)


def _write(files: tuple[ExportFile, ...], out: Path) -> list[Path]:
    """The first file goes to `out` itself unless that is a folder (or has no suffix); the others go beside it."""
    to_file = not out.is_dir() and out.suffix != "" and len({file.path.suffix for file in files[1:]} - {".txt"}) == 0
    folder = out.parent if to_file else out
    targets = [(out if to_file and index == 0 else folder / file.path, file.text) for index, file in enumerate(files)]
    for path, text in targets:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode("utf-8"))
        except OSError as error:
            raise SpecError(f"cannot write {path}: {error.strerror}", hint="give another --out") from error
    return [path for path, _ in targets]
