"""`autotune init`: a first study file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.errors import SpecError
from autotune.host.gpus import read_gpus
from autotune.preflight.model import read_model
from autotune.spec.document import parse_document
from autotune.spec.load import validated
from autotune.spec.schema import editor_line
from autotune.spec.study import StudySpec
from autotune.spec.template import Machine, ModelTraits, draft_study


def init(
    model: Annotated[str, typer.Argument(help="Hugging Face id or local folder of the model.")],
    out: Annotated[Path, typer.Option(help="Where the study is written.")] = Path("study.yaml"),
    gpus: Annotated[int | None, typer.Option(min=0, help="GPUs to use. Default: all of this machine.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a commented study file for a model, after a look at the machine and the model's configuration."""
    if not model.strip():
        raise SpecError("the model has no name", key="MODEL", hint="such as Qwen/Qwen3-8B, or a folder")
    if out.exists() and not force:
        raise SpecError("exists already", file=out, hint="choose another name with --out, or overwrite it with --force")
    draft = draft_study(model, _machine(gpus), _traits(model), first_line=editor_line(out))
    validated(parse_document(draft.text, str(out)), StudySpec)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(draft.text, encoding="utf-8")
    except OSError as error:
        raise SpecError(
            f"cannot be written: {error.strerror}", file=out, hint="choose another place with --out"
        ) from None
    for reason in draft.reasons:
        typer.echo(reason)
    typer.echo(f"Wrote {out}. Put your own traffic under `load:`, then: autotune validate {out}; autotune run {out}")


def _traits(model: str) -> ModelTraits:
    """What the model's configuration says, if it is on this machine; nothing is downloaded."""
    facts = read_model(model)
    if facts is None:
        return ModelTraits()
    return ModelTraits(
        known=True,
        architecture=facts.architecture,
        experts=facts.experts if facts.experts > 1 else 0,
        quantisation=facts.quantization,
        context=facts.max_positions,
        weight_bytes=facts.weight_bytes,
    )


def _machine(gpus: int | None) -> Machine:
    """The GPUs that NVML shows, or as many as the user says."""
    found = read_gpus().gpus
    count = len(found) if gpus is None else gpus
    if not found or count == 0:
        return Machine(gpus=count)
    return Machine(gpus=count, card=found[0].name, memory=found[0].memory_total)
