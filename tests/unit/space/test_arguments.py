"""The table of arguments, and what it says about a configuration."""

import pytest

from autotune.space.arguments import ArgumentTable, bundled_table, check_config, shipped_table
from autotune.space.config import EngineConfig
from autotune.space.renames import argument_renames, parse_version

TABLE = bundled_table()


def problems(args: dict[str, object], env: dict[str, str] | None = None) -> list[tuple[str, str, bool]]:
    return [(p.name, p.hint, p.fatal) for p in check_config(EngineConfig.of(args, env), TABLE)]


def test_the_bundled_table_is_that_of_0_32() -> None:
    assert TABLE.version == "0.32.0"
    assert len(TABLE.arguments) > 300
    assert TABLE.by_name["max_num_seqs"].type == "int"
    assert TABLE.by_name["max_num_batched_tokens"].type == "size"
    assert TABLE.by_name["enable_prefix_caching"].kind == "switch"
    assert TABLE.by_name["compilation_config"].kind == "json"
    assert TABLE.by_name["cudagraph_capture_sizes"].kind == "list"
    assert TABLE.by_flag["-tp"].name == "tensor_parallel_size"


def test_a_table_survives_its_own_form() -> None:
    assert ArgumentTable.from_json(TABLE.to_json()) == TABLE


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 1, "arguments": [{}]}', '{"version": 1, "arguments": 3}']
)
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        ArgumentTable.from_json(text)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("max_num_seqs", True),
        ("max_num_seq", False),
        ("compilation_config.cudagraph_mode", True),
        ("compilation_config.cudagraph_mod", False),
        ("compilation_config.pass_config.fuse_norm_quant", True),
        ("compilation_config.pass_config.nonsense", False),
        ("compilation_config.inductor_compile_config.anything", True),
        ("hf_overrides.anything.at.all", True),
        ("max_num_seqs.inner", False),
    ],
)
def test_names_are_known_or_not(name: str, known: bool) -> None:
    assert TABLE.knows(name) is known


def test_a_good_configuration_has_no_problem() -> None:
    args = {"max_num_seqs": 8, "max_model_len": "32k", "quantization": "fp8", "kv_cache_dtype": "fp8", "seed": -1,
            "gpu_memory_utilization": 1, "cudagraph_capture_sizes": [1, 2], "hf_overrides": {"a": 1}}  # fmt: skip
    assert problems(args, {"VLLM_USE_DEEP_GEMM": "0"}) == []


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        ({"max_num_seq": 1}, "Did you mean max_num_seqs?"),
        ({"kv_cache_dtype": "fp9"}, "Did you mean fp8?"),
        ({"quantization": "fb8"}, "Did you mean fp8?"),
        ({"max_num_seqs": "many"}, "Give a whole number."),
        ({"max_num_seqs": True}, "Give a whole number."),
        ({"gpu_memory_utilization": "much"}, "Give a number."),
        ({"enable_prefix_caching": "yes"}, "Give true or false."),
        ({"cuda_graph_sizes": [1]}, "It is cudagraph_capture_sizes now."),
        ({"swap_space": 4}, "offload KV with kv_offloading_size"),
        ({"monokernel": True}, "It came with vLLM 0.33"),
    ],
)
def test_a_fatal_problem_says_what_to_do(args: dict[str, object], hint: str) -> None:
    ((name, said, fatal),) = problems(args)
    assert name in args
    assert hint in said
    assert fatal


def test_several_values_for_one_are_refused() -> None:
    ((name, _, fatal),) = problems({"max_num_seqs": [1, 2]})
    assert (name, fatal) == ("max_num_seqs", True)


def test_what_only_warns_is_not_fatal() -> None:
    found = problems({"disable_cascade_attn": True}, {"VLLM_ATTENTION_BACKEND": "FLASHINFER"})
    assert [(name, fatal) for name, _, fatal in found] == [
        ("disable_cascade_attn", False),
        ("VLLM_ATTENTION_BACKEND", False),
    ]


def test_the_shipped_table_of_another_release_has_its_names() -> None:
    """The names are those of `renames.toml`, which was made from the releases themselves."""
    assert shipped_table("") is shipped_table("0.32.4") is shipped_table("0.11.0") is TABLE
    old, new = shipped_table("0.26.0"), shipped_table("0.33.1")
    assert old.knows("calculate_kv_scales") and not new.knows("calculate_kv_scales")
    assert old.by_flag["--no-calculate-kv-scales"].kind == "switch"
    assert new.knows("watchdog_config.anything") and not TABLE.knows("watchdog_config")
    assert old.knows("compilation_config.pass_config.enable_sp")
    assert not old.knows("kernel_config.enable_jit_warmup") and TABLE.knows("kernel_config.enable_jit_warmup")
    for version in ("0.26.0", "0.28.0", "0.31.0", "0.33.1"):
        table, target = shipped_table(version), parse_version(version)
        for name, rule in argument_renames().items():
            if not rule.exists_in(target):
                assert not table.knows(name) or rule.to, (version, name)
