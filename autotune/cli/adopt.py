"""`autotune adopt`: what runs today as the baseline of a study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from autotune.adopt.baseline import baseline_section, baseline_text, study_text
from autotune.adopt.registry import SOURCES, adopt_file
from autotune.adopt.tables import AskedTable, table_of, table_of_engine
from autotune.adopt.values import Adopted
from autotune.cli.terminal import terminal
from autotune.engine.redaction import redact
from autotune.errors import SpecError
from autotune.space.renames import parse_version
from autotune.spec.load import load_study

CONTAINER = (
    "this file starts a container, a study the vLLM of an interpreter; trials as containers: engine.command, "
    "examples/docker.yaml"
)

FormatName = Annotated[str | None, typer.Option("--format", "-f", help=f"One of {', '.join(SOURCES)}.")]
EngineName = Annotated[str | None, typer.Option(help="Which server, where the file starts several.")]
Variables = Annotated[list[str] | None, typer.Option(help="NAME=VALUE for a variable that the file leaves open.")]
PythonPath = Annotated[str | None, typer.Option(help="Interpreter that has your vLLM: its parser is asked.")]
StudyPath = Annotated[Path | None, typer.Option(help="Ask the vLLM of this study.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="For machines.")]
"""Options of every command that reads a launch configuration."""


def adopt(
    file: Annotated[Path, typer.Argument(help="What you start vLLM with today.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Write a study file. Default: print the baseline section.")] = None,
    format: FormatName = None,
    engine: EngineName = None,
    var: Variables = None,
    python: PythonPath = None,
    study: StudyPath = None,
    as_json: AsJson = False,
) -> None:
    """Read a launch configuration (shell, YAML, docker, compose, Kubernetes, Helm, systemd) into a baseline."""
    asked = asked_table(python, study)
    adopted = adopt_file(file, table=asked.asked, format=format, engine=engine, given=variables(var or []))
    if as_json:
        typer.echo(json.dumps(_report(adopted, asked), indent=1))
        return
    _print_remarks(adopted, asked)
    if out is None:
        typer.echo(baseline_text(adopted), nl=False)
        return
    if out.exists():
        raise SpecError("exists already", file=out, hint="give another --out, or remove it first")
    try:
        out.write_text(study_text(adopted), encoding="utf-8")
    except OSError as error:
        raise SpecError(f"cannot be written: {error.strerror}", file=out, hint="give another --out") from error
    load_study(out)
    terminal(stderr=True).print(Text(f"wrote {out}; next: autotune validate {out}"), soft_wrap=True)


def asked_table(python: str | None, study: Path | None) -> AskedTable:
    """The vLLM that a file is held against.

    Raises:
        SpecError: both are given, or the study is wrong.
        EnvironmentFault: there is no vLLM in that interpreter.
    """
    if python is not None and study is not None:
        raise SpecError("--python and --study both name a vLLM", hint="give one of them")
    return table_of(python) if study is None else table_of_engine(load_study(study).engine)


def versions_differ(adopted: Adopted) -> str:
    """A sentence where the file starts another vLLM than the one it was held against, else empty."""
    if not adopted.version or parse_version(adopted.version) == parse_version(adopted.asked):
        return ""
    return f"the file starts vLLM {adopted.version}; --python PATH asks the vLLM of an interpreter"


def judged_by(adopted: Adopted, asked: AskedTable) -> str:
    """Whose arguments the file was held against."""
    return f"vLLM {adopted.asked} ({asked.origin})"


def variables(pairs: list[str]) -> dict[str, str]:
    """`NAME=VALUE` as a mapping.

    Raises:
        SpecError: one of them has no `=`.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise SpecError(f"--var {pair!r} is not NAME=VALUE", hint="such as --var TP=4")
        found[name] = value
    return found


def _print_remarks(adopted: Adopted, asked: AskedTable) -> None:
    console = terminal(stderr=True)

    def line(label: str, text: str, style: str = "") -> None:
        console.print(Text(f"{label:<9} {redact(text)}", style=style), soft_wrap=True)

    image = f", image {adopted.reading.image}" if adopted.reading.image else ""
    line("read", f"{adopted.path.name} as {adopted.format}{image}; model {adopted.model or 'not named in it'}")
    line("judged by", judged_by(adopted, asked))
    for item in adopted.unknown:
        where = adopted.text.find(item.name)
        place = f" (line {adopted.line_of(where)})" if where >= 0 else ""
        line("changed", f"{item.message}{place}. {item.hint}", "yellow")
    for text in adopted.unread:
        line("not read", text, "yellow")
    for name in adopted.secrets:
        line("secret", f"{name} stays a reference; its value was not kept")
    for name in adopted.exposed:
        line("warning", f"{name} stands in the file in plain text; move it to a secret", "bold yellow")
    if adopted.left:
        line("kept", f"{', '.join(adopted.left)}: stays in the file, a study does not tune it")
    container = CONTAINER if adopted.reading.image and adopted.format in ("compose", "shell", "systemd") else ""
    for note in (*adopted.notes, versions_differ(adopted), container):
        if note:
            line("note", note)


def _report(adopted: Adopted, asked: AskedTable) -> dict[str, object]:
    return {
        "format": adopted.format,
        "model": adopted.model,
        "image": adopted.reading.image,
        "vllm_version": adopted.version,
        "read_as": {"version": adopted.asked, "origin": asked.origin},
        "gpus": adopted.reading.gpus,
        **adopted.config.to_dict(),
        "kept": list(adopted.kept),
        "unknown": [{"name": u.name, "message": u.message, "hint": u.hint, "fatal": u.fatal} for u in adopted.unknown],
        "unread": [redact(text) for text in adopted.unread],
        "secrets": list(adopted.secrets),
        "exposed": list(adopted.exposed),
        "notes": [redact(text) for text in adopted.notes],
        "study": baseline_section(adopted),
    }
