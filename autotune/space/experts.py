"""Known good settings as points of a space: the warm start that is worth more than the choice of a sampler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from autotune.errors import SpecError
from autotune.space.catalogue import SpaceContext, search_folders
from autotune.space.config import EngineConfig, FrozenValue
from autotune.space.expression import parse_expression
from autotune.space.layout import Layout
from autotune.space.source import Source, read_source
from autotune.space.space import SearchSpace
from autotune.spec.study import ArgValue, Part

FULL_SHARE = 0.85
"""Share of a GPU's memory that weights may take in a layout that an expert setting chooses."""


class ExpertSpec(Part):
    """One entry of `experts.yaml`."""

    name: str
    """What it is."""
    when: str = "true"
    """For which model and machine."""
    layout: Literal["tensor", "data", "expert", "expert-data", "small"] | None = None
    """How it uses the GPUs."""
    args: dict[str, ArgValue] = Field(default_factory=dict)
    """What differs from vLLM's defaults."""
    note: str = ""
    """Why it is good."""
    source: str
    """Where it comes from."""


class ExpertFile(Part):
    """The file `experts.yaml`."""

    experts: list[ExpertSpec]
    """In the order in which they are tried."""


@dataclass(frozen=True)
class Expert:
    """A point to start with.

    Attributes:
        point: legal values by parameter name.
        name: what it is.
        note: why it is good, and what was snapped or left out.
        source: where it comes from.
    """

    point: Mapping[str, FrozenValue]
    name: str
    note: str
    source: str


@dataclass(frozen=True)
class ExpertChoice:
    """The points for this space, and in words why others were left out."""

    experts: tuple[Expert, ...]
    dropped: tuple[str, ...]


def experts(space: SearchSpace, context: SpaceContext) -> tuple[Expert, ...]:
    """Expert points that fit model, machine and space, the best known first.

    Raises:
        SpecError: `experts.yaml` is wrong.
    """
    return choose_experts(space, context).experts


def choose_experts(space: SearchSpace, context: SpaceContext) -> ExpertChoice:
    """As `experts`, with a sentence for each entry that matched but is not legal here.

    Raises:
        SpecError: `experts.yaml` is wrong.
    """
    source = _source()
    entries = source.validated(ExpertFile).experts
    base = space.point_of(EngineConfig())
    seen = [space.canonical(base)] if base is not None else []
    found: list[Expert] = []
    dropped: list[str] = []
    for index, entry in enumerate(entries):
        if not _applies(entry, context, source, index):
            continue
        result = _place(entry, space, context)
        if isinstance(result, str):
            dropped.append(f"{entry.name}: {result}")
        elif result.point in seen:
            dropped.append(f"{entry.name}: the same as another one here")
        else:
            seen.append(dict(result.point))
            found.append(result)
    return ExpertChoice(tuple(found), tuple(dropped))


def _source() -> Source:
    for folder, _ in search_folders():
        if (folder / "experts.yaml").is_file():
            return read_source(folder / "experts.yaml")
    return read_source(search_folders()[-1][0] / "experts.yaml")


def _applies(entry: ExpertSpec, context: SpaceContext, source: Source, index: int) -> bool:
    moe = context.model.get("is_moe")
    facts = {**context.facts, "model.is_moe": bool(context.model.get("num_experts")) if moe is None else moe}
    try:
        return parse_expression(entry.when).holds(facts) is True
    except SpecError as error:
        raise source.error(error.message, ("experts", index, "when"), error.hint) from error


def _place(entry: ExpertSpec, space: SearchSpace, context: SpaceContext) -> Expert | str:
    """The entry as a point of the space, or why it is none."""
    args: dict[str, FrozenValue] = dict(EngineConfig.of(entry.args).args)
    known = {parameter.name for parameter in space.parameters}
    ignored = sorted(args.keys() - known - {name for name, _ in space.fixed})
    layouts = next((p for p in space.parameters if p.kind == "layout"), None)
    notes = [entry.note]
    if layouts is not None and entry.layout is not None:
        choices = [Layout.parse(str(value)) for value in layouts.values]
        chosen = _choose(entry.layout, choices, context, args.get("quantization") == "fp8")
        if chosen is None:
            return f"no layout of the kind `{entry.layout}` holds the model"
        args.update(chosen.args)
    point = space.point_of(EngineConfig.of({name: value for name, value in args.items() if name not in ignored}))
    if point is None:
        return "the space has no such value"
    violations = space.violations(point)
    if violations:
        return violations[0]
    # Where null is the value, the entry spelled out what vLLM does anyway.
    snapped = [
        f"{name} {args[name]} became {point[name]}"
        for name in sorted(args)
        if point.get(name) is not None and point[name] != args[name]
    ]
    notes += [f"Snapped: {', '.join(snapped)}."] if snapped else []
    notes += [f"Not tuned here: {', '.join(ignored)}."] if ignored else []
    return Expert(point, entry.name, " ".join(note for note in notes if note), entry.source)


_PREFERENCE: dict[str, Callable[[Layout], tuple[int, ...]]] = {
    "tensor": lambda layout: (layout.gpus, layout.tensor, -layout.pipeline),
    "data": lambda layout: (layout.gpus, layout.data, -layout.pipeline),
    "expert": lambda layout: (layout.gpus, layout.tensor, -layout.pipeline),
    "expert-data": lambda layout: (layout.gpus, layout.data, -layout.pipeline),
    "small": lambda layout: (-layout.gpus, layout.tensor),
}


def _choose(kind: str, choices: list[Layout], context: SpaceContext, fp8: bool) -> Layout | None:
    """The layout of that kind that uses most GPUs and holds the weights."""
    wants_experts = kind.startswith("expert")
    fitting = [layout for layout in choices if _holds(layout, context, fp8)]
    matching = [
        layout for layout in fitting if layout.expert is wants_experts and (kind != "tensor" or layout.data == 1)
    ]
    # One GPU has no expert parallel; then the plain layout says the same.
    if wants_experts and all(layout.gpus == 1 for layout in choices):
        matching = fitting
    return max(matching, key=_PREFERENCE[kind], default=None)


def _holds(layout: Layout, context: SpaceContext, fp8: bool) -> bool:
    weights = context.model.get("weight_bytes")
    if not isinstance(weights, int) or context.gpu_memory is None:
        return True
    # Expert parallel spreads the experts over all ranks; the rest is small against them.
    parts = layout.gpus if layout.expert else layout.tensor * layout.pipeline
    return weights * (0.5 if fp8 else 1.0) / parts <= FULL_SHARE * context.gpu_memory
