"""The cards the simulator knows (``data/cards.toml``). Units: FLOP/s, bytes/s, GiB, seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from .tables import table


@dataclass(frozen=True)
class Card:
    """One accelerator: peak rates from its data sheet and the shares of them that are sustained."""

    name: str
    large: bool
    """Whether vLLM picks its defaults for large cards (8,192 batched tokens, 1,024 sequences)."""
    peak_flops: Mapping[str, float]
    gemm_efficiency: Mapping[str, float]
    hbm_bandwidth: float
    memory_efficiency: float
    memory_gib: float
    free_gib: float
    link_bandwidth: float
    link_latency_s: float

    def sustained_flops(self, number_format: str) -> float:
        """FLOP/s that large matrix products reach; a format without own units computes in bfloat16."""
        key = number_format if number_format in self.peak_flops else "bf16"
        return self.peak_flops[key] * self.gemm_efficiency[key]

    @property
    def sustained_bandwidth(self) -> float:
        """Bytes/s that streaming the weights reaches."""
        return self.hbm_bandwidth * self.memory_efficiency


@cache
def cards() -> Mapping[str, Card]:
    """All known cards by their short name."""
    return {key: Card(**value) for key, value in table("cards").items()}
