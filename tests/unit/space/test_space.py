"""What a space makes of a point: configuration, conditions, relations, neighbours, and the way back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import SpecError
from autotune.space.catalogue import SpaceContext, list_spaces, load_space
from autotune.space.config import EngineConfig, FrozenValue
from autotune.space.layout import Layout
from autotune.space.space import SearchSpace
from autotune.spec.study import LayoutSpec, ParameterSpec, SpaceSpec

MODEL = {"num_attention_heads": 64, "num_key_value_heads": 4, "num_experts": 128, "moe_intermediate_size": 1536,
         "max_position_embeddings": 40960, "num_hidden_layers": 94}  # fmt: skip
SPACES = {
    item.name: load_space(item.name, SpaceContext(gpus=0 if item.name == "cpu" else 8, model=MODEL))
    for item in list_spaces()
    if item.shipped
}
EMPTY = EngineConfig()


def space(parameters: dict[str, ParameterSpec], gpus: int = 4, **more: object) -> SearchSpace:
    return load_space(SpaceSpec(name="mine", parameters=parameters, **more), SpaceContext(gpus=gpus))  # type: ignore[arg-type]


SEQS = ParameterSpec(ladder=[8, 64, 256])
CACHING = ParameterSpec(switch=True)


@st.composite
def points(draw: st.DrawFn) -> tuple[SearchSpace, dict[str, FrozenValue]]:
    chosen = SPACES[draw(st.sampled_from(sorted(SPACES)))]
    return chosen, {p.name: draw(st.sampled_from(p.values)) for p in chosen.parameters}


@settings(max_examples=150, deadline=None)
@given(points())
def test_a_configuration_leads_back_to_its_point(case: tuple[SearchSpace, dict[str, FrozenValue]]) -> None:
    chosen, point = case
    config = chosen.config(point, EMPTY)
    back = chosen.point_of(config)
    assert back is not None
    assert chosen.config(back, EMPTY) == config
    assert back == chosen.canonical(point)


@settings(max_examples=150, deadline=None)
@given(points())
def test_the_canonical_form_decides_the_configuration(case: tuple[SearchSpace, dict[str, FrozenValue]]) -> None:
    chosen, point = case
    canonical = chosen.canonical(point)
    assert chosen.canonical(canonical) == canonical
    assert set(canonical) == chosen.active(point)
    assert chosen.violations(canonical) == chosen.violations(point)
    shuffled = dict(sorted(point.items(), reverse=True))
    assert chosen.config(canonical, EMPTY).hash == chosen.config(shuffled, EMPTY).hash


@settings(max_examples=100, deadline=None)
@given(points())
def test_neighbours_are_other_legal_values(case: tuple[SearchSpace, dict[str, FrozenValue]]) -> None:
    chosen, point = case
    for parameter in chosen.parameters:
        near = chosen.neighbours(point, parameter.name)
        assert near
        assert all(any(value is own for own in parameter.values) for value in near)
        assert not any(type(value) is type(point[parameter.name]) and value == point[parameter.name] for value in near)


def test_neighbours_on_a_ladder_are_the_next_steps() -> None:
    mine = space({"max_num_seqs": SEQS, "kv_cache_dtype": ParameterSpec(choice=[None, "fp8", "auto"])})
    assert mine.neighbours({"max_num_seqs": 64}, "max_num_seqs") == (8, 256)
    assert mine.neighbours({"max_num_seqs": 8}, "max_num_seqs") == (64,)
    assert mine.neighbours({"kv_cache_dtype": "fp8"}, "kv_cache_dtype") == (None, "auto")


def test_a_setting_that_is_switched_off_does_not_reach_the_engine() -> None:
    mine = space(
        {
            "kv_cache_dtype": ParameterSpec(choice=[None, "fp8"]),
            "block_size": ParameterSpec(ladder=[16, 32], when='kv_cache_dtype == "fp8"'),
            "max_num_seqs": ParameterSpec(ladder=[1, 2], when="block_size > 16"),
        }
    )
    point = {"kv_cache_dtype": None, "block_size": 32, "max_num_seqs": 2}
    assert mine.canonical(point) == {"kv_cache_dtype": None}
    assert mine.config(point, EMPTY) == EMPTY
    assert mine.active({**point, "kv_cache_dtype": "fp8"}) == {"kv_cache_dtype", "block_size", "max_num_seqs"}


def test_a_relation_that_fails_is_told_with_its_values() -> None:
    mine = space(
        {"max_num_seqs": SEQS, "max_num_batched_tokens": ParameterSpec(ladder=[32, 512])},
        require=["max_num_batched_tokens >= max_num_seqs", "max_num_batched_tokens <= max_model_len"],
    )
    assert mine.violations({"max_num_seqs": 64, "max_num_batched_tokens": 512}) == ()
    (text,) = mine.violations({"max_num_seqs": 64, "max_num_batched_tokens": 32})
    assert text == (
        "`max_num_batched_tokens >= max_num_seqs` does not hold (max_num_batched_tokens=32, max_num_seqs=64)"
    )
    fixed = mine.fixing({"max_model_len": 256})
    assert len(fixed.violations({"max_num_seqs": 64, "max_num_batched_tokens": 512})) == 1


def test_fixed_and_derived_arguments_and_the_base() -> None:
    mine = space(
        {"max_num_seqs": SEQS},
        fixed={"max_model_len": 2048, "compilation_config": {"mode": 3}},
        derive={"max_num_batched_tokens": "max(max_num_seqs, 32)", "block_size": "num_gpu_blocks_override * 2"},
    )
    config = mine.config({"max_num_seqs": 8}, EngineConfig.of({"dtype": "bfloat16", "max_num_seqs": 1}, {"A": "b"}))
    assert dict(config.args) == {
        "compilation_config.mode": 3, "dtype": "bfloat16", "max_model_len": 2048, "max_num_batched_tokens": 32,
        "max_num_seqs": 8,
    }  # fmt: skip
    assert config.env == (("A", "b"),)


def test_a_choice_of_none_takes_the_argument_out_of_the_base() -> None:
    mine = space({"quantization": ParameterSpec(choice=[None, "fp8"])})
    assert mine.config({"quantization": None}, EngineConfig.of({"quantization": "fp8"})) == EMPTY


def test_a_layout_becomes_its_arguments_and_names_for_expressions() -> None:
    mine = space(
        {
            "layout": ParameterSpec(layout=LayoutSpec(use_all_gpus=True)),
            "enable_dbo": ParameterSpec(switch=True, when="data_parallel_size > 1"),
        },
        require=["gpus_used == gpus"],
    )
    assert mine.config({"layout": "tp2-dp2", "enable_dbo": True}, EMPTY).to_dict()["args"] == {
        "tensor_parallel_size": 2, "data_parallel_size": 2, "enable_dbo": True,
    }  # fmt: skip
    assert mine.active({"layout": "tp4-dp1"}) == {"layout"}
    base = EngineConfig.of({"tensor_parallel_size": 4})
    assert mine.config({"layout": "tp1-dp4"}, base).to_dict()["args"] == {"data_parallel_size": 4}


def test_the_only_layout_undoes_that_of_the_baseline() -> None:
    mine = space({"layout": ParameterSpec(layout=LayoutSpec(tensor_parallel=[1], data_parallel=[4]))})
    base = EngineConfig.of({"tensor_parallel_size": 4})
    assert Layout.of(mine.config({"layout": "tp1-dp4"}, base)) == Layout(1, data=4)


def test_variables_and_mappings() -> None:
    mine = space(
        {
            "VLLM_USE_DEEP_GEMM": ParameterSpec(switch=True, env=True),
            "speculative_config": ParameterSpec(choice=[None, {"method": "ngram", "num_speculative_tokens": 3}]),
        }
    )
    speculative = mine.by_name["speculative_config"].values[1]
    config = mine.config({"VLLM_USE_DEEP_GEMM": True, "speculative_config": speculative}, EMPTY)
    assert dict(config.env) == {"VLLM_USE_DEEP_GEMM": "1"}
    assert config.get("speculative_config.method") == "ngram"
    assert mine.point_of(config) == {"VLLM_USE_DEEP_GEMM": True, "speculative_config": speculative}


def test_a_foreign_configuration_is_snapped_or_refused() -> None:
    mine = space({"max_num_seqs": SEQS, "kv_cache_dtype": ParameterSpec(choice=[None, "fp8"])})
    assert mine.point_of(EngineConfig.of({"max_num_seqs": 100})) == {"max_num_seqs": 64, "kv_cache_dtype": None}
    assert mine.point_of(EngineConfig.of({"kv_cache_dtype": "auto"})) == {"max_num_seqs": 256, "kv_cache_dtype": None}
    assert mine.point_of(EngineConfig.of({"kv_cache_dtype": "int8_per_token_head"})) is None


def test_settings_that_the_study_fixes_are_no_longer_tuned() -> None:
    mine = space({"max_num_seqs": SEQS, "layout": ParameterSpec(layout=LayoutSpec()), "enable_prefix_caching": CACHING})
    assert set(mine.fixing({"max_num_seqs": 7, "tensor_parallel_size": 2}).by_name) == {"enable_prefix_caching"}
    assert mine.fixing({"max_num_seqs": 7}).config({}, EMPTY).get("max_num_seqs") == 7


def test_a_layout_that_the_study_fixes_counts_in_relations() -> None:
    mine = space({"max_num_seqs": SEQS, "layout": ParameterSpec(layout=LayoutSpec())}, require=["gpus_used <= 2"])
    assert mine.fixing({"tensor_parallel_size": 2}).violations({"max_num_seqs": 8}) == ()
    assert mine.fixing({"tensor_parallel_size": 4}).violations({"max_num_seqs": 8}) != ()


def test_an_unknown_parameter_in_a_point_is_refused() -> None:
    with pytest.raises(SpecError, match="no parameter nonsense"):
        space({"max_num_seqs": SEQS}).config({"nonsense": 1}, EMPTY)


def test_the_fingerprint_is_that_of_the_meaning() -> None:
    plain = space({"max_num_seqs": SEQS})
    described = space({"max_num_seqs": ParameterSpec(ladder=[8, 64, 256], description="words")})
    longer = space({"max_num_seqs": ParameterSpec(ladder=[8, 64, 256, 512])})
    required = space({"max_num_seqs": SEQS}, require=["max_num_seqs > 8"])
    assert plain.fingerprint == described.fingerprint
    assert len({plain.fingerprint, longer.fingerprint, required.fingerprint}) == 3
    assert plain.size == 3
