"""Finds search spaces by name and reads them, from anywhere; a user's folder overrides the shipped ones."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from autotune.errors import SpecError
from autotune.space.arguments import bundled_table
from autotune.space.config import EngineConfig, FrozenValue
from autotune.space.defaults import engine_defaults
from autotune.space.expression import Expr, nearest, parse_expression
from autotune.space.layout import Candidate, Layout, candidates
from autotune.space.source import Source, read_source
from autotune.space.space import Kind, Parameter, SearchSpace
from autotune.spec.study import ArgValue, ParameterSpec, SpaceSpec
from autotune.spec.topology import SETTINGS, bare_name, is_split_name, name_problem

MODEL_FACTS = (
    "architecture", "num_attention_heads", "num_key_value_heads", "num_hidden_layers", "num_experts",
    "num_experts_per_tok", "hidden_size", "head_dim", "intermediate_size", "moe_intermediate_size", "vocab_size",
    "max_position_embeddings", "max_model_len", "quantization", "dtype", "weight_bytes", "is_moe", "is_mla",
    "is_hybrid",
)  # fmt: skip
"""Names after `model.`; a fact that is not known is null."""
HOST_FACTS = ("gpus", "gpu_memory", "card", "links", "vllm_version", "longest_request")


@dataclass(frozen=True)
class SpaceContext:
    """What a space needs to know of machine and model.

    Attributes:
        gpus: GPUs that a trial may use; 0 for the CPU engine.
        model: facts by name without `model.` (`num_attention_heads`, `num_experts`, ...).
        vllm_version: version of the engine, empty where unknown.
        card: short name such as `h100`, empty where unknown.
        gpu_memory: bytes per GPU, None where unknown.
        links: the slowest link between the GPUs of a trial: `nvlink`, `pcie`, `numa`, or empty where unknown.
        tensor_links: the same inside a tensor parallel group, by its size.
        split: a trial is several engines, so settings of one role have a meaning.
        longest_request: prompt and answer of the load's longest request in tokens, only where the study allows that
            the context is cut to it (`max_model_len` is tuned then).
    """

    gpus: int = 1
    model: Mapping[str, FrozenValue] = field(default_factory=dict)
    vllm_version: str = ""
    card: str = ""
    gpu_memory: int | None = None
    links: str = ""
    tensor_links: Mapping[int, str] = field(default_factory=dict)
    split: bool = False
    longest_request: int | None = None

    @property
    def facts(self) -> dict[str, FrozenValue]:
        """The same by dotted name, for expressions."""
        return {
            **{f"model.{name}": value for name, value in self.model.items()},
            "gpus": self.gpus,
            "gpu_memory": self.gpu_memory,
            "card": self.card or None,
            "links": self.links or None,
            "vllm_version": self.vllm_version or None,
            "longest_request": self.longest_request,
        }


@dataclass(frozen=True, slots=True)
class SpaceFile:
    """A space that can be named: where it stands and whether it is the user's."""

    name: str
    path: Path
    shipped: bool
    description: str


def search_folders() -> tuple[tuple[Path, bool], ...]:
    """Folders in the order they are looked through, with whether they are shipped."""
    own = [Path("search_spaces")]
    own += [Path(part) for part in os.environ.get("AUTOTUNE_SPACES", "").split(os.pathsep) if part]
    config_home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    own.append(Path(config_home).expanduser() / "autotune" / "search_spaces")
    shipped = shipped_folder()
    users = [(folder, False) for folder in own if folder.resolve() != shipped.resolve()]
    return (*users, (shipped, True))


def shipped_folder() -> Path:
    """Where the shipped spaces stand: in the wheel, or at the top of a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "data" / "search_spaces"
    return installed if installed.is_dir() else package.parent / "search_spaces"


def list_spaces() -> tuple[SpaceFile, ...]:
    """Every space that can be named, sorted; a user's file hides a shipped one of the same name."""
    found: dict[str, SpaceFile] = {}
    for folder, shipped in search_folders():
        for path in sorted(folder.glob("*.yaml")) if folder.is_dir() else ():
            if path.stem != "experts" and path.stem not in found:
                found[path.stem] = SpaceFile(path.stem, path, shipped, _description(path))
    return tuple(sorted(found.values(), key=lambda item: item.name))


def _description(path: Path) -> str:
    """What the file says of itself; one broken file of a user must not hide the others."""
    try:
        return str(read_source(path).data.get("description") or "").strip()
    except SpecError as error:
        return f"cannot be read: {error.message}"


def find_space(ref: str, beside: Path | None = None) -> Path:
    """The file of a space named `ref`, or at the path `ref` (relative to here or to the folder `beside`).

    Raises:
        SpecError: there is none; names the nearest one and the folders looked through.
    """
    if ref.endswith((".yaml", ".yml")) or os.sep in ref:
        candidates = [Path(ref).expanduser()] + ([beside / ref] if beside else [])
        for path in candidates:
            if path.is_file():
                return path
        raise SpecError(f"no search space at {ref}", key="space", hint="Give the path of a YAML file or a name.")
    folders = [folder for folder, _ in search_folders()]
    for folder in folders:
        if (folder / f"{ref}.yaml").is_file():
            return folder / f"{ref}.yaml"
    names = [item.name for item in list_spaces()]
    near = nearest(ref, names)
    hint = (f"Did you mean {near}? " if near else "") + f"There are: {', '.join(names)}. Looked in: "
    raise SpecError(f"no search space named {ref!r}", key="space", hint=hint + ", ".join(map(str, folders)))


def load_space(ref: str | SpaceSpec, facts: SpaceContext, *, beside: Path | None = None) -> SearchSpace:
    """Read a space by name, path or as it stands in a study, and fit it to machine and model.

    Raises:
        SpecError: with file, line, key, what is legal and what to do.
    """
    if isinstance(ref, SpaceSpec):
        return build_space(ref, facts, Source.inline(ref.name or "inline"))
    source = read_source(find_space(ref, beside))
    return build_space(source.validated(SpaceSpec), facts, source)


def space_candidates(
    ref: str | SpaceSpec, context: SpaceContext, *, beside: Path | None = None
) -> tuple[Candidate, ...]:
    """The layouts that a space allows, those that are left out too; empty where it has no layout to choose.

    Raises:
        SpecError: as `load_space`.
    """
    spec = ref if isinstance(ref, SpaceSpec) else read_source(find_space(ref, beside)).validated(SpaceSpec)
    given = [item.layout for item in spec.parameters.values() if item.layout is not None]
    return tuple(
        found for layout in given for found in candidates(layout, context.gpus, context.facts, context.tensor_links)
    )


def build_space(spec: SpaceSpec, context: SpaceContext, source: Source) -> SearchSpace:
    """Make the space for this machine and model; parameters that cannot be active there are left out."""
    known = _known_names(spec)
    facts = context.facts
    parameters = []
    only = Layout()
    for name, item in spec.parameters.items():
        parameter = _parameter(name, item, context, known, source)
        constant = parameter.when is not None and not (parameter.when.names - facts.keys() - set(_fact_names()))
        if constant and parameter.when is not None and parameter.when.holds(facts) is not True:
            continue
        if parameter.kind == "layout" and len(parameter.values) == 1 and context.gpus <= 1:
            # With several GPUs the baseline may have another layout, which the only one of the space must undo.
            only = Layout.parse(str(parameter.values[0]))
            continue
        parameters.append(parameter)
    fixed = EngineConfig.of({**spec.fixed, **only.args}).args
    space = SearchSpace(
        name=spec.name or source.name,
        parameters=tuple(parameters),
        requires=tuple(_expr(text, known, source, "require", i) for i, text in enumerate(spec.require)),
        derives=tuple((name, _expr(text, known, source, "derive", name)) for name, text in spec.derive.items()),
        fixed=fixed,
        facts=tuple(sorted({**only.facts, **facts}.items())),
        defaults=tuple(sorted(engine_defaults(context.gpus, context.gpu_memory, context.card).items())),
        description=(spec.description or "").strip(),
    )
    _check_names(spec, context, source)
    try:
        space.order  # noqa: B018  computed once, so that a circle is reported here
    except SpecError as error:
        raise source.error(error.message, ("parameters",)) from error
    return space


def _fact_names() -> list[str]:
    return [*HOST_FACTS, *(f"model.{name}" for name in MODEL_FACTS)]


@lru_cache(maxsize=1)
def _argument_names() -> frozenset[str]:
    return frozenset(bundled_table().names)


def _known_names(spec: SpaceSpec) -> frozenset[str]:
    own = {*spec.parameters, *spec.derive, *(name for name, _ in EngineConfig.of(spec.fixed).args)}
    return frozenset({*own, *_fact_names(), *Layout().facts, *_argument_names(), *SETTINGS})


def _check_names(spec: SpaceSpec, context: SpaceContext, source: Source) -> None:
    """Every argument named in a space must be vLLM's, in some version that is supported."""
    table = bundled_table()
    groups: tuple[tuple[str, Iterable[str]], ...] = (
        ("parameters", [n for n, item in spec.parameters.items() if not item.env and item.layout is None]),
        ("derive", spec.derive),
        ("fixed", spec.fixed),
    )
    for group, names in groups:
        for name in names:
            if (problem := name_problem(name)) is not None:
                raise source.error(problem[0], (group, name), problem[1])
            if is_split_name(name) and not context.split:
                hint = "Set `topology: disaggregated` in the study, or remove it."
                raise source.error(f"{name!r} is for several engines, but a trial has one", (group, name), hint)
            if name not in SETTINGS and not table.knows(bare_name(name)):
                near = table.nearest(name)
                hint = f"Did you mean {near}?" if near else "`vllm serve --help=all` lists the arguments."
                raise source.error(f"vLLM has no argument {name!r}", (group, name), hint)


def _expr(text: str, known: Iterable[str], source: Source, *place: str | int) -> Expr:
    try:
        expr = parse_expression(text)
        expr.check_names(known)
    except SpecError as error:
        raise source.error(error.message, place, error.hint) from error
    return expr


def _parameter(
    name: str, spec: ParameterSpec, context: SpaceContext, known: Iterable[str], source: Source
) -> Parameter:
    place = ("parameters", name)
    when = _expr(spec.when, known, source, *place, "when") if spec.when else None
    kind, values = _values(name, spec, context, source)
    return Parameter(name, kind, values, when, spec.env, kind == "ladder", (spec.description or "").strip())


def _values(
    name: str, spec: ParameterSpec, context: SpaceContext, source: Source
) -> tuple[Kind, tuple[FrozenValue, ...]]:
    place = ("parameters", name)
    if spec.ladder is not None:
        return "ladder", tuple(spec.ladder)
    if spec.choice is not None:
        if len(spec.choice) < 2:
            raise source.error("a choice of one", (*place, "choice"), "Put a single value under `fixed:` instead.")
        return "choice", tuple(_frozen(value) for value in spec.choice)
    if spec.layout is not None:
        tried = candidates(spec.layout, context.gpus, context.facts, context.tensor_links)
        found = [one.layout for one in tried if not one.reason]
        if not found:
            why = "; ".join(f"{one.layout}: {one.reason}" for one in tried[:4])
            said = f"no layout fits {context.gpus} GPUs and this model ({why})"
            raise source.error(said, (*place, "layout"), "Allow other sizes, or give more GPUs.")
        return "layout", tuple(str(layout) for layout in found)
    return "switch", (False, True)


def _frozen(value: ArgValue) -> FrozenValue:
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    return tuple(value) if isinstance(value, list) else value
