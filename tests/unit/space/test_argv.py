"""The command line: what is written, what is read, and that the two are inverse."""

import json
import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.space.arguments import Argument, ArgumentTable, bundled_table
from autotune.space.argv import parse_argv, to_argv, to_yaml_mapping
from autotune.space.config import EngineConfig, FrozenValue

TABLE = bundled_table()
WORDS = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_characters="-"), min_size=1, max_size=8)
NUMBERS = st.integers(-(2**40), 2**40)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.booleans() | NUMBERS | FLOATS | st.text(max_size=8)
CHECKED = {name: keys for name, keys in TABLE.nested if "." not in name}


def values(argument: Argument) -> st.SearchStrategy[FrozenValue]:
    """Legal values of one argument."""
    if argument.kind in ("switch", "true"):
        return st.booleans() if argument.kind == "switch" else st.just(True)
    if argument.choices:
        legal = [int(choice) if argument.type == "int" else choice for choice in argument.choices]
        one: st.SearchStrategy[FrozenValue] = st.sampled_from(legal)
    elif argument.type in ("int", "size"):
        one = NUMBERS
    elif argument.type == "float":
        one = FLOATS
    else:
        one = WORDS
    if argument.kind in ("list", "append"):
        return st.lists(one, min_size=1, max_size=3).map(tuple)  # type: ignore[arg-type]
    return one


@st.composite
def configurations(draw: st.DrawFn) -> EngineConfig:
    args: dict[str, object] = {}
    for argument in draw(st.lists(st.sampled_from(TABLE.arguments), max_size=8)):
        if argument.name in CHECKED:
            keys = draw(st.lists(st.sampled_from(CHECKED[argument.name]), min_size=1, max_size=3))
            args[argument.name] = {key: draw(SCALARS | st.lists(SCALARS, max_size=3)) for key in keys}
        elif argument.kind == "json":
            args[argument.name] = {draw(st.from_regex(r"[a-z_]{1,5}", fullmatch=True)): {"inner": draw(SCALARS)}}
        else:
            args[argument.name] = draw(values(argument))
    return EngineConfig.of(args)


@settings(max_examples=300, deadline=None)
@given(configurations())
def test_what_is_written_is_read_back(config: EngineConfig) -> None:
    again, leftovers = parse_argv(to_argv(config))
    assert leftovers == ()
    assert again == config
    assert again.hash == config.hash


@settings(max_examples=100, deadline=None)
@given(configurations())
def test_the_configuration_file_says_the_same(config: EngineConfig) -> None:
    mapping = to_yaml_mapping(config)
    assert json.loads(json.dumps(mapping)) == mapping
    assert EngineConfig.of(mapping) == config


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(sorted(TABLE.by_flag)) | st.text(max_size=12), max_size=8))
def test_any_command_line_is_read_without_a_fault(tokens: list[str]) -> None:
    config, _ = parse_argv(tokens)
    again, leftovers = parse_argv(to_argv(config))
    assert not [token for token in leftovers if token in TABLE.by_flag]
    assert again.args is not None


def test_a_command_line_as_people_write_it() -> None:
    line = (
        "vllm serve Qwen/Qwen3-8B -tp 2 --max_num_seqs=64 --max-model-len 32k --no-enable-prefix-caching -O3 "
        "-cc.cudagraph_mode FULL_DECODE_ONLY -cc.pass_config.fuse_allreduce_rms=true "
        "--compilation-config '{\"mode\": 3}' --cudagraph-capture-sizes 1 2 4 --enforce-eager "
        "--max-num-batched-tokens 2K --not-an-argument 5 "
        "--speculative-config.num_speculative_tokens=3 --seed -1 --trust-remote-code"
    )
    config, leftovers = parse_argv(shlex.split(line))
    assert dict(config.args) == {
        "tensor_parallel_size": 2, "max_num_seqs": 64, "max_model_len": 32000, "enable_prefix_caching": False,
        "optimization_level": "3", "compilation_config.cudagraph_mode": "FULL_DECODE_ONLY",
        "compilation_config.pass_config.fuse_allreduce_rms": True, "compilation_config.mode": 3,
        "cudagraph_capture_sizes": (1, 2, 4), "enforce_eager": True, "max_num_batched_tokens": 2048,
        "speculative_config.num_speculative_tokens": 3, "seed": -1, "trust_remote_code": True,
    }  # fmt: skip
    assert leftovers == ("vllm", "serve", "Qwen/Qwen3-8B", "--not-an-argument", "5")


def test_what_the_engine_is_given() -> None:
    config = EngineConfig.of(
        {
            "max_num_seqs": 8, "enable_prefix_caching": False, "gpu_memory_utilization": 0.9,
            "compilation_config": {"cudagraph_mode": "FULL", "pass_config": {"fuse_allreduce_rms": True}},
            "cudagraph_capture_sizes": [1, 2], "headless": False, "seed": -1, "middleware": ["a", "b"],
        }
    )  # fmt: skip
    assert to_argv(config) == [
        "--compilation-config", '{"cudagraph_mode": "FULL", "pass_config": {"fuse_allreduce_rms": true}}',
        "--cudagraph-capture-sizes", "1", "2", "--no-enable-prefix-caching", "--gpu-memory-utilization", "0.9",
        "--max-num-seqs", "8", "--middleware", "a", "--middleware", "b", "--seed=-1",
    ]  # fmt: skip
    assert to_argv(EngineConfig.of({"not_known": True, "other": False})) == ["--not-known", "--no-other"]


def test_json_that_cannot_be_flattened_stays_as_it_is() -> None:
    text = '{"rope_parameters": {"a-b": 1, "c": null}}'
    config, _ = parse_argv(["--hf-overrides", text])
    assert config.args == (("hf_overrides", text),)
    assert to_argv(config) == ["--hf-overrides", text]


def test_null_in_a_configuration_of_vllm_is_its_default() -> None:
    config, _ = parse_argv(["--compilation-config", '{"mode": null, "cudagraph_mode": "NONE"}'])
    assert config.args == (("compilation_config.cudagraph_mode", "NONE"),)


@pytest.mark.parametrize("flag", ["--no-enable-prefix-caching", "--disable-prefix-caching"])
def test_the_three_ways_to_say_no(flag: str) -> None:
    newer = ArgumentTable(
        "0.33.0",
        (
            Argument(
                "enable_prefix_caching",
                ("--enable-prefix-caching", "--no-enable-prefix-caching", "--disable-prefix-caching"),
                "switch",
                "bool",
            ),
        ),
    )
    for table in (TABLE, newer):
        assert parse_argv([flag], table)[0].args == (("enable_prefix_caching", False),)
        assert to_argv(EngineConfig.of({"enable_prefix_caching": False}), table) == ["--no-enable-prefix-caching"]
        assert to_argv(EngineConfig.of({"enable_prefix_caching": True}), table) == ["--enable-prefix-caching"]


def test_items_are_added_to_a_list() -> None:
    config, _ = parse_argv(["-cc.custom_ops+", "none", "-cc.custom_ops+=+a,+b"])
    assert config.get("compilation_config.custom_ops") == ("none", "+a", "+b")


def test_words_are_taken_as_vllm_takes_them() -> None:
    """Each was given to the parser of vLLM 0.32.0: it takes the first four and refuses the others."""
    for words, expected in (
        ("-O 3", {"optimization_level": "3"}),
        ("-O=2", {"optimization_level": "2"}),
        ("--max-num-se 5", {"max_num_seqs": 5}),
        ("--no-enable_chunked-prefill", {"enable_chunked_prefill": False}),
    ):
        assert parse_argv(words.split(), TABLE) == (EngineConfig.of(expected), ())
    for words in ("-O.cudagraph_mode=FULL", "-O {}", "--enable-chunked-prefill=False", "--max-num 5", "--tp 2"):
        config, left = parse_argv(words.split(), TABLE)
        assert (dict(config.args), left) == ({}, tuple(words.split()))
