"""Which engines a trial consists of when it is several behind a router: their settings and their GPUs. Pure.

A configuration of such a trial holds vLLM's arguments for all engines, `prefill.*` and `decode.*` for one role, and

    topology.prefill    engines for prefill; 0 (or not given) makes all of them alike: replicas behind the router
    topology.decode     engines for decode, or replicas; default: as many as the GPUs that are left can hold
    router.threshold    tokens of a prompt from which on it goes to a prefill engine
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from autotune.space.config import EngineConfig, FrozenValue
from autotune.space.layout import Layout
from autotune.spec.study import StudySpec
from autotune.spec.topology import ROLES, SETTINGS

Role: TypeAlias = Literal["prefill", "decode", "replica"]
THRESHOLD = 512
"""Default of `router.threshold`, in tokens."""
CONNECTOR: Mapping[Role, Mapping[str, FrozenValue]] = {
    "prefill": {"kv_transfer_config.kv_connector": "NixlConnector", "kv_transfer_config.kv_role": "kv_producer"},
    "decode": {"kv_transfer_config.kv_connector": "NixlConnector", "kv_transfer_config.kv_role": "kv_consumer"},
}
"""What makes an engine hand its KV cache on, or take one over."""


@dataclass(frozen=True, slots=True)
class Member:
    """One engine of a trial.

    Attributes:
        name: `prefill-0`, `decode-1`, `replica-0`.
        role: what it is for.
        config: its own complete configuration, as `vllm serve` takes it.
        gpus: GPUs (or CPU ranks) that it takes.
    """

    name: str
    role: Role
    config: EngineConfig
    gpus: int


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """The engines of one trial.

    Attributes:
        members: prefill engines first.
        threshold: tokens of a prompt from which on it goes to a prefill engine.
        idle: GPUs that no engine takes.
        problem: why there is no such trial, in one sentence; empty where there is.
    """

    members: tuple[Member, ...] = ()
    threshold: int = THRESHOLD
    idle: int = 0
    problem: str = ""

    @property
    def roles(self) -> tuple[Member, ...]:
        """One engine of each role: those of a role are alike."""
        return tuple({member.role: member for member in reversed(self.members)}.values())[::-1]


def split_slots(spec: StudySpec, gpus: int | None) -> int:
    """What the engines of a trial share: its GPUs, or on the CPU engine the number of engines."""
    if spec.engine.python == "cpu" or not gpus:
        return spec.topology.engines or 2
    return gpus


def split_plan(config: EngineConfig, slots: int, *, transfer: str = "none", on_cpu: bool = False) -> SplitPlan:
    """The engines that `config` asks for.

    Args:
        config: complete configuration of the trial.
        slots: GPUs of the trial; on the CPU, where engines share the cores, the number of engines.
        transfer: `topology.transfer`.
        on_cpu: engines take one slot each, whatever their layout.
    """
    wanted = _whole(config, "topology.prefill", 0)
    threshold = _whole(config, "router.threshold", THRESHOLD)
    if isinstance(wanted, str) or isinstance(threshold, str):
        return SplitPlan(problem=wanted if isinstance(wanted, str) else str(threshold))
    second: Role = "decode" if wanted else "replica"
    first_config, second_config = role_config(config, "prefill"), role_config(config, second)
    if wanted and transfer == "nixl":
        first_config, second_config = _handing(first_config, "prefill"), _handing(second_config, "decode")
    first, each = (1, 1) if on_cpu else (Layout.of(first_config).gpus, Layout.of(second_config).gpus)
    left = slots - wanted * first
    others = _whole(config, "topology.decode", max(left, 0) // each)
    if isinstance(others, str):
        return SplitPlan(problem=others)
    if others < 1 or others * each > left:
        unit = "engines" if on_cpu else "GPUs"
        said = f"{wanted} prefill engines of {first} and {max(others, 1)} {second} engines of {each}"
        return SplitPlan(problem=f"{said} do not fit the {slots} {unit} of a trial")
    members = (
        *(Member(f"prefill-{index}", "prefill", first_config, first) for index in range(wanted)),
        *(Member(f"{second}-{index}", second, second_config, each) for index in range(others)),
    )
    return SplitPlan(members, threshold, left - others * each)


def role_config(config: EngineConfig, role: Role) -> EngineConfig:
    """What an engine of this role is started with: what all share, and over it what is said of the role alone."""
    shared: dict[str, FrozenValue] = {}
    own: dict[str, FrozenValue] = {}
    for name, value in config.args:
        head, _, rest = name.partition(".")
        if head == role:
            own[rest] = value
        elif head not in ROLES and name not in SETTINGS:
            shared[name] = value
    return EngineConfig.of(shared, dict(config.env)).merged(own)


def _handing(config: EngineConfig, role: Role) -> EngineConfig:
    """The same with the connector of its role; what the study says of the connector wins."""
    return EngineConfig.of(CONNECTOR[role], dict(config.env)).merged(dict(config.args))


def trial_name(config: EngineConfig, role: Role, name: str) -> str:
    """The name under which a trial's configuration holds the argument `name` of an engine of this role."""
    own = f"{role}.{name}"
    return own if config.get(own) is not None else name


def _whole(config: EngineConfig, name: str, default: int) -> int | str:
    value = config.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return f"{name} is {value!r}, and must be a whole number from 0 on"
    return value
