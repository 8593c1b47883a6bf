"""Room that an engine is started with for a search: what is lowered live costs a second, what is raised a start.

Only for batched tokens. Kernels are compiled for the whole range up to the limit, so one compilation serves all of it,
and the memory that a wider step needs is small beside the weights. More sequences would change which CUDA graphs vLLM
captures. What is proven is started exactly as it will be deployed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.space.config import EngineConfig, FrozenValue
from autotune.space.defaults import lowers

WIDENED = ("max_num_batched_tokens",)


@dataclass(frozen=True, slots=True)
class Headroom:
    """How wide engines are started.

    Attributes:
        limits: by setting; what a configuration gives below it is raised to it.
    """

    limits: tuple[tuple[str, FrozenValue], ...] = ()

    @classmethod
    def of(cls, baseline: EngineConfig, defaults: Mapping[str, FrozenValue]) -> Headroom:
        """As wide as what runs today, which serves on this card.

        Args:
            baseline: what runs today.
            defaults: what vLLM takes where the baseline gives nothing.
        """
        known = {**defaults, **dict(baseline.args)}
        return cls(tuple((name, known[name]) for name in WIDENED if isinstance(known.get(name), int)))

    def widened(self, config: EngineConfig) -> EngineConfig:
        """`config` with its limits raised. What it leaves to vLLM stays so."""
        wide = tuple((name, self.value(name, value)) for name, value in config.args)
        return config if wide == config.args else EngineConfig(wide, config.env)

    def value(self, name: str, value: FrozenValue) -> FrozenValue:
        """The limit that an engine is started with for `value`."""
        limit = dict(self.limits).get(name)
        return limit if limit is not None and lowers(name, value, limit) else value


AS_ASKED = Headroom()
"""No room: engines are started with what is asked for."""


def started_with(config: EngineConfig, chosen: Mapping[str, FrozenValue]) -> EngineConfig:
    """The configuration that an engine was started with for `config`, by what the engine says it runs with."""
    return Headroom(tuple((name, chosen[name]) for name in WIDENED if name in chosen)).widened(config)
