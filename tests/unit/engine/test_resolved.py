"""What ran is what was asked, or the trial says why not."""

from __future__ import annotations

import json

import pytest

from autotune.engine.resolved import resolve, rules
from autotune.engine.startlog import StartLog
from autotune.space.config import EngineConfig

CONFIG_LINE = (
    "(EngineCore pid=1) INFO 11-29 14:57:05 [core.py:116] Initializing a V1 LLM engine (v0.32.0) with config: "
    "model='m', dtype=torch.bfloat16, max_seq_len=2048, tensor_parallel_size=1, quantization=None, "
    "enforce_eager=True, kv_cache_dtype=auto, enable_prefix_caching=True, enable_chunked_prefill=True"
)
INFO = {
    "vllm_config": {
        "model_config": {"dtype": "torch.bfloat16", "max_model_len": 2048, "enforce_eager": False},
        "cache_config": {"cache_dtype": "fp8_e4m3", "block_size": 16, "num_gpu_blocks": 100},
        "scheduler_config": {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "async_scheduling": False},
        "compilation_config": {"cudagraph_mode": [2, 1], "max_cudagraph_capture_size": 64},
    }
}


def compare(
    args: dict[str, object], *lines: str, info: dict[str, object] | None = None, env: dict[str, str] | None = None
):
    return resolve(EngineConfig.of(args, env), StartLog().feed_all(lines), info or {}, "0.32.0")


def test_equal_settings_in_other_words() -> None:
    asked = {
        "dtype": "bfloat16",
        "max_model_len": "2k",
        "kv_cache_dtype": "fp8",
        "max_num_seqs": 64,
        "enforce_eager": False,
        "compilation_config": {"cudagraph_mode": "FULL_AND_PIECEWISE"},
    }
    result = compare({**asked, "max_model_len": 2048}, info=INFO)
    assert result.mismatches == ()
    assert result.kv_cache_tokens == 1600
    assert dict(result.values)["max_num_seqs"] == 64


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"max_num_seqs": 128}, "max_num_seqs: asked for 128, the engine runs with 64"),
        ({"dtype": "float16"}, "dtype: asked for float16"),
        ({"kv_cache_dtype": "fp8_e5m2"}, "kv_cache_dtype: asked for fp8_e5m2"),
        ({"async_scheduling": True}, "async_scheduling: asked for True, the engine runs with False"),
        ({"enforce_eager": True}, "enforce_eager: asked for True"),
        (
            {"compilation_config": {"cudagraph_mode": "PIECEWISE"}},
            "compilation_config.cudagraph_mode: asked for PIECEWISE",
        ),
    ],
)
def test_another_value_is_a_mismatch(args: dict[str, object], words: str) -> None:
    (sentence,) = compare(args, info=INFO).mismatches
    assert sentence.startswith(words)


def test_the_log_is_enough_without_server_info() -> None:
    assert compare({"max_model_len": 2048, "dtype": "bfloat16", "enforce_eager": True}, CONFIG_LINE).mismatches == ()
    (sentence,) = compare({"max_model_len": 4096}, CONFIG_LINE).mismatches
    assert sentence == "max_model_len: asked for 4096, the engine runs with 2048"


def test_auto_is_whatever_the_engine_chooses() -> None:
    assert compare({"dtype": "auto", "kv_cache_dtype": "auto"}, CONFIG_LINE, info=INFO).mismatches == ()


def test_cut_graph_sizes_are_a_remark() -> None:
    result = compare({"max_cudagraph_capture_size": 512}, info=INFO)
    assert result.mismatches == ()
    assert "max_cudagraph_capture_size: asked for 512, the engine runs with 64" in result.notes


def test_ignored_variable_that_was_asked_for() -> None:
    line = "WARNING 11-29 14:57:05 [envs.py:1] Unknown vLLM environment variable detected: VLLM_FOO"
    (sentence,) = compare({}, line, env={"VLLM_FOO": "1"}).mismatches
    assert sentence.startswith("env.VLLM_FOO is ignored")
    assert compare({}, line).mismatches == ()


def test_fallback_counts_only_where_something_was_asked_for() -> None:
    line = "WARNING 11-29 14:57:05 [x.py:1] Skipping CUDA graph capture"
    assert compare({}, line).mismatches == ()
    assert compare({"enforce_eager": True}, line).mismatches == ()
    (sentence,) = compare({"compilation_config": {"cudagraph_mode": "FULL"}}, line).mismatches
    assert sentence.startswith("eager mode instead of CUDA graphs")


def test_what_is_switched_off_is_no_fallback_where_that_was_asked_for() -> None:
    line = "INFO 11-29 14:57:05 [vllm.py:1109] Asynchronous scheduling is disabled."
    assert compare({"async_scheduling": False}, line).mismatches == ()
    assert compare({"async_scheduling": True}, line).mismatches != ()


def test_simulators_information_is_text() -> None:
    info = {"vllm_config": json.dumps({"max_num_seqs": "32"})}
    assert compare({"max_num_seqs": 32}, info=info).mismatches == ()
    assert compare({"max_num_seqs": 16}, info=info).mismatches != ()


def test_text_form_of_vllm_is_nothing_to_compare_with() -> None:
    assert compare({"max_num_seqs": 32}, info={"vllm_config": "VllmConfig(model=...)"}).mismatches == ()


def test_every_rule_has_a_place() -> None:
    assert all(rule.info or rule.log for rule in rules())
    assert len({rule.name for rule in rules()}) == len(rules())
