"""The `topology` part of a study file: one engine a trial, or several behind a router that share its GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from autotune.spec.checks import Problem, StudyProblems
from autotune.spec.part import Part

if TYPE_CHECKING:
    from autotune.spec.study import StudySpec

KINDS: Final = ("single", "disaggregated")
ROLES: Final = ("prefill", "decode")
"""What an engine of a split trial is for; `prefill.max_num_seqs` is a setting of one role alone."""
SETTINGS: Final = ("topology.prefill", "topology.decode", "router.threshold")
"""Settings of the split itself. They stand beside vLLM's arguments, so that they are searched together with them."""
SAME_FOR_ALL: Final = ("quantization", "kv_cache_dtype", "dtype", "model_impl", "hf_overrides", "max_model_len")
"""What all engines of a trial share: it decides answers, and which requests can be served at all."""


class TopologySpec(Part):
    """Whether a trial is one engine or several behind a router."""

    kind: Literal["single", "disaggregated"] = "single"
    """`single` is one engine, `disaggregated` several behind a router: replicas, or prefill and decode engines."""
    engines: Annotated[int, Field(ge=2)] | None = None
    """Engines of a trial on the CPU engine, where no GPUs limit them. Default: 2."""
    transfer: Literal["none", "nixl"] = "none"
    """`none` routes a request by the length of its prompt; `nixl` moves the KV cache from prefill to decode."""
    characters_per_token: Annotated[float, Field(gt=0)] = 4.0
    """How the router estimates the length of a prompt that is text; prompts of token ids are counted."""

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, data: object) -> object:
        """`topology: disaggregated` is short for its defaults."""
        if not isinstance(data, str):
            return data
        if data not in KINDS:
            raise StudyProblems([Problem((), f"{data!r} is not known", f"legal: {', '.join(KINDS)}")])
        return {"kind": data}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Editors accept the short form too."""
        return {"anyOf": [handler(core), {"enum": list(KINDS), "type": "string"}]}

    @property
    def split(self) -> bool:
        """A trial is several engines."""
        return self.kind == "disaggregated"

    def problems(self) -> Iterable[Problem]:
        if not self.split:
            for name in ("engines", "transfer"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    yield Problem(
                        (name,), "is only for `kind: disaggregated`", "set `kind: disaggregated` or remove it"
                    )


def bare_name(name: str) -> str:
    """vLLM's argument behind a name that may stand for one role: `prefill.max_num_seqs` is `max_num_seqs`."""
    role, dot, rest = name.partition(".")
    return rest if dot and role in ROLES else name


def is_split_name(name: str) -> bool:
    """Whether a setting has a meaning for several engines only."""
    return name in SETTINGS or bare_name(name) != name


def name_problem(name: str) -> tuple[str, str] | None:
    """What is wrong with a setting of a split trial, and what to do; None where nothing is."""
    head, dot, rest = name.partition(".")
    if head in ("topology", "router") and name not in SETTINGS:
        return f"{name!r} is no setting of the topology", f"there are: {', '.join(SETTINGS)}"
    if dot and head in ROLES and rest.split(".")[0] in SAME_FOR_ALL:
        return f"{rest} must be the same for all engines of a trial", f"write `{rest}` instead of `{name}`"
    return None


def topology_problems(study: StudySpec) -> Iterable[Problem]:
    """What does not hold between the topology and the rest of a study."""
    topology, engine, hardware = study.topology, study.engine, study.hardware
    if topology.split and engine.kind not in ("vllm", "simulated"):
        yield Problem(
            ("topology", "kind"),
            f"several engines cannot be started with `engine.kind: {engine.kind}`",
            "use `vllm` or `simulated`, or measure your own router with `kind: endpoint` and `topology: single`",
        )
    on_cpu = engine.python == "cpu" or (hardware.gpus == 0 and engine.kind == "vllm")
    if topology.engines is not None and not on_cpu:
        yield Problem(
            ("topology", "engines"),
            "is for the CPU engine; on GPUs their number follows from `hardware.gpus` and the layouts",
            "remove it",
        )
    if topology.split and not on_cpu and hardware.gpus is not None and hardware.gpus < 2:
        yield Problem(
            ("hardware", "gpus"), f"is {hardware.gpus}, but several engines need a GPU each", "give 2 or more"
        )
    if topology.split and study.retune is not None:
        hint = "tune it with `autotune run`, and deploy what `autotune show STUDY --trial N` prints"
        yield Problem(("retune",), "deploys one engine, and a trial of this study is several", hint)
    if topology.transfer == "nixl" and engine.kind == "vllm":
        yield from _own_transfer(study)
    for part in ("engine", "baseline"):
        yield from _names(study, getattr(study, part).args, (part, "args"))
    if not isinstance(study.space, str):
        yield from _names(study, study.space.parameters, ("space", "parameters"))
        yield from _names(study, study.space.fixed, ("space", "fixed"))


def _names(study: StudySpec, names: Iterable[str], place: tuple[str, ...]) -> Iterable[Problem]:
    for written in names:
        name = written.replace("-", "_")
        if (problem := name_problem(name)) is not None:
            yield Problem((*place, written), *problem)
        elif is_split_name(name) and not study.topology.split:
            hint = "set `topology: disaggregated`, or remove it"
            yield Problem((*place, written), "is for several engines, but a trial has one", hint)


def _own_transfer(study: StudySpec) -> Iterable[Problem]:
    for name in study.engine.args:
        if name.replace("-", "_").split(".")[0] == "kv_transfer_config":
            hint = "remove it; what a role needs beyond that goes to `prefill.kv_transfer_config...`"
            yield Problem(("engine", "args", name), "is set by `topology.transfer`", hint)
