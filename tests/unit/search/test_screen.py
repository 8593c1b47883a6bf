"""What may be proposed."""

from __future__ import annotations

from autotune.search.screen import Screen, Tried
from autotune.space.catalogue import SpaceContext, load_space
from autotune.space.config import EngineConfig
from autotune.spec.space import ParameterSpec, SpaceSpec


def test_a_point_that_only_spells_out_defaults_is_the_baseline() -> None:
    parameters = {"kv_cache_dtype": ParameterSpec(choice=["auto", "fp8"])}
    base = EngineConfig.of({"max_num_seqs": 256})
    screen = Screen(load_space(SpaceSpec(parameters=parameters), SpaceContext(gpus=1)), base, lambda _: None)
    tried = Tried(frozenset([base.hash]))
    assert screen.candidate({"kv_cache_dtype": "auto"}, tried).refusal == "already tried"
    other = screen.candidate({"kv_cache_dtype": "fp8"}, tried)
    assert other.admitted
    assert dict(other.config.args) == {"max_num_seqs": 256, "kv_cache_dtype": "fp8"}
