"""A search space as typed values. Its meaning is in `autotune.space`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, Literal

from pydantic import Field

from autotune.spec import checks
from autotune.spec.checks import Problem
from autotune.spec.part import ArgValue, Part

LINKS: Final = ("nvlink", "pcie", "numa")
"""How two GPUs reach each other, fastest first: NVLink or NVSwitch, one socket's PCIe, across sockets."""


class ParameterSpec(Part):
    """One tunable setting. Exactly one of the four kinds."""

    ladder: list[int | float] | None = None
    """Ordered numbers, at most 16 steps."""
    choice: list[ArgValue] | None = None
    """Unordered values; `null` leaves the argument out."""
    switch: bool | None = None
    """On or off (`switch: true`)."""
    layout: LayoutSpec | None = None
    """Tensor x data x expert x pipeline parallel as one choice."""
    when: str | None = None
    """Only where this expression holds, such as `quantization == "fp8"`."""
    env: bool = False
    """An environment variable instead of an argument."""
    description: str | None = None
    """What it does, for the reader."""

    def problems(self) -> Iterable[Problem]:
        return checks.parameter_problems(self)


class LayoutSpec(Part):
    """How the layouts are made from the number of GPUs, heads and experts."""

    tensor_parallel: list[Annotated[int, Field(ge=1)]] | None = None
    """Allowed sizes. Default: powers of two up to the GPUs."""
    data_parallel: list[Annotated[int, Field(ge=1)]] | None = None
    """Allowed sizes. Default: what is left of the GPUs."""
    pipeline_parallel: list[Annotated[int, Field(ge=1)]] | None = None
    """Allowed sizes. Default: 1."""
    expert_parallel: list[bool] | None = None
    """Default: off and on for models with experts, off for others."""
    expert_balancing: list[bool] = Field(default_factory=lambda: [False], min_length=1)
    """With expert parallel: copies of busy experts (`enable_eplb`), off, on or both. Default: off."""
    all_to_all: list[Annotated[str, Field(pattern="^[a-z0-9_]+$")]] = Field(default_factory=list)
    """With expert and data parallel: `all2all_backend` values to try beside vLLM's default."""
    slowest_link: Literal["nvlink", "pcie", "numa"] = "numa"
    """Slowest link that a tensor parallel group may cross; `numa` (across sockets) allows all, and a plan warns."""
    use_all_gpus: bool = False
    """Leave out layouts with idle GPUs. A trial is charged for all its GPUs, used or idle."""


class SpaceSpec(Part):
    """A search space, inline or as a file of its own."""

    name: str | None = None
    """Name, for messages."""
    description: str | None = None
    """For whom it is made."""
    parameters: dict[str, ParameterSpec]
    """Setting by vLLM's argument name."""
    require: list[str] = Field(default_factory=list)
    """Relations that must hold, such as `max_num_batched_tokens >= max_num_seqs`."""
    derive: dict[str, str] = Field(default_factory=dict)
    """Arguments computed from others."""
    fixed: dict[str, ArgValue] = Field(default_factory=dict)
    """Arguments that this space sets for every trial but the baseline."""

    def problems(self) -> Iterable[Problem]:
        return checks.space_problems(self)


for _model in (ParameterSpec, SpaceSpec):
    _model.model_rebuild()
