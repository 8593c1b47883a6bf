"""`autotune validate`: checks a study file and prints it with every default filled in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from autotune.adopt.tables import table_of_engine
from autotune.engine.cpu_setup import model_path
from autotune.host.gpus import read_gpus
from autotune.preflight.model import read_model
from autotune.preflight.simulated import simulated_facts
from autotune.space.catalogue import SpaceContext, load_space
from autotune.space.given import check_given
from autotune.space.space import SearchSpace
from autotune.spec.load import load_study, placing
from autotune.spec.resolved import resolved_yaml
from autotune.spec.study import ObjectiveSpec, StudySpec


def validate(
    study: Annotated[Path, typer.Argument(help="The study file.")],
    changes: Annotated[list[str] | None, typer.Option("--set", help="Lay key=value over the file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Check a study file: prints it with every default, or all mistakes with file, line, key and what is legal."""
    spec = load_study(study, changes or ())
    with placing(study, changes or ()):
        check_given(spec, table_of_engine(spec.engine).table)
        space = None if spec.engine.kind == "endpoint" else load_space(spec.space, _context(spec), beside=study.parent)
    if as_json:
        typer.echo(json.dumps(_report(spec, space), indent=1))
        return
    typer.echo(resolved_yaml(spec).rstrip())
    typer.echo("")
    typer.echo("objectives: " + ", ".join(objective_text(item) for item in spec.objectives))
    if space is None:
        typer.echo("space: none, a running server is measured as it is")
    else:
        typer.echo(f"space: {space.name}, {len(space.parameters)} parameters")
        for parameter in space.parameters:
            typer.echo(f"  {parameter.name} ({parameter.kind}, {len(parameter.values)} values)")
    typer.echo(f"{study} is a valid study")


def objective_text(objective: ObjectiveSpec) -> str:
    """An objective in words: ``minimize ttft p95 at the last level``."""
    latency = objective.metric in ("ttft", "tpot", "itl", "e2e")
    direction = objective.direction or ("minimize" if latency else "maximize")
    percentile = f" p{objective.percentile or 95:g}" if latency else ""
    share = " per GPU" if objective.per_gpu else ""
    if objective.metric == "capacity":
        return f"{direction} capacity{share}"
    level = objective.level
    if level == "area":
        return f"{direction} {objective.metric}{percentile}{share} as the mean over all levels"
    where = f"the {level} level" if isinstance(level, str) else f"level {level:g}"
    return f"{direction} {objective.metric}{percentile}{share} at {where}"


def _context(spec: StudySpec) -> SpaceContext:
    """The machine as the study describes it; what it leaves out is read from NVML."""
    hardware = spec.hardware
    found = () if hardware.gpus is not None or spec.engine.python == "cpu" else read_gpus().gpus
    devices = len(hardware.devices) if hardware.devices is not None else len(found)
    gpus = hardware.gpus if hardware.gpus is not None else 0 if spec.engine.python == "cpu" else max(devices, 1)
    simulated = spec.engine.kind == "simulated"
    facts = simulated_facts(spec.model) if simulated else read_model(model_path(spec.model))
    return SpaceContext(
        gpus=gpus,
        model=facts.space_facts if facts is not None else {},
        card=hardware.card or (spec.engine.simulate.card if spec.engine.simulate is not None else ""),
        gpu_memory=hardware.gpu_memory,
        split=spec.topology.split,
    )


def _report(spec: StudySpec, space: SearchSpace | None) -> dict[str, object]:
    parameters = space.parameters if space is not None else ()
    return {
        "study": spec.model_dump(mode="json"),
        "objectives": [objective_text(item) for item in spec.objectives],
        "space": space.name if space is not None else None,
        "parameters": {item.name: {"kind": item.kind, "values": list(item.values)} for item in parameters},
    }
