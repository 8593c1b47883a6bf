"""What is checked once, and what is checked again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.engine.protocol import Resolved
from autotune.quality.precision import only_change, precision_key, same_precision
from autotune.space.config import EngineConfig

BASE = {"max_num_seqs": 64, "dtype": "bfloat16"}
NAMES = Path(__file__).parents[2] / "data" / "vllm_argument_names.json"


def key(args: dict[str, object], env: dict[str, str] | None = None, **resolved: str) -> str:
    version = resolved.pop("version", "0.32.0")
    return precision_key(EngineConfig.of(args, env), Resolved(tuple(resolved.items()), version=version))


@pytest.mark.parametrize(
    "change",
    [
        {"max_num_seqs": 8},
        {"max_num_batched_tokens": 512},
        {"enable_prefix_caching": False},
        {"gpu_memory_utilization": 0.95},
        {"compilation_config": {"cudagraph_capture_sizes": [1, 2]}},
    ],
)
def test_limits_and_sizes_do_not_ask_for_a_new_check(change: dict[str, object]) -> None:
    assert key({**BASE, **change}) == key(BASE)


@pytest.mark.parametrize(
    "change",
    [
        {"quantization": "fp8"},
        {"kv_cache_dtype": "fp8"},
        {"calculate_kv_scales": True},
        {"dtype": "float16"},
        {"tensor_parallel_size": 2},
        {"enable_expert_parallel": True},
        {"attention_backend": "FLASHINFER"},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        {"enforce_eager": True},
        {"compilation_config": {"mode": 3}},
        {"hf_overrides": {"rope_theta": 500.0}},
        {"chat_template": "other.jinja"},
        {"a_setting_of_next_year": 1},
    ],
)
def test_whatever_may_change_answers_is_checked(change: dict[str, object]) -> None:
    assert key({**BASE, **change}) != key(BASE)
    assert not same_precision(EngineConfig.of({**BASE, **change}), EngineConfig.of(BASE))


def test_another_version_or_another_chosen_backend_is_checked_again() -> None:
    assert key(BASE, version="0.33.0") != key(BASE)
    assert key(BASE, attention_backend="TRITON_ATTN") != key(BASE, attention_backend="FLASH_ATTN")
    assert key(BASE, max_num_seqs="7") == key(BASE)


def test_variables_of_the_engine_count_and_those_of_logs_do_not() -> None:
    assert key(BASE, {"VLLM_USE_TRITON_FLASH_ATTN": "0"}) != key(BASE)
    assert key(BASE, {"VLLM_LOGGING_LEVEL": "DEBUG", "HOME": "/x"}) == key(BASE)


def test_the_listed_arguments_exist() -> None:
    """A typing mistake in the list would never be noticed: the setting would be checked again for nothing."""
    from autotune.quality.precision import _lists

    known = json.dumps(json.loads(NAMES.read_text("utf-8")))
    gone_in_some_versions = {"max_num_partial_prefills", "max_long_partial_prefills", "swap_space", "api_key"}
    plain = {name for name in _lists().arguments if "." not in name} - gone_in_some_versions
    assert not [
        name for name in sorted(plain) if f'"{name}"' not in known and f'"--{name.replace("_", "-")}"' not in known
    ]


def test_a_value_that_fails_alone_is_named() -> None:
    baseline = EngineConfig.of(BASE)
    assert only_change(EngineConfig.of({**BASE, "kv_cache_dtype": "fp8", "max_num_seqs": 8}), baseline) == (
        "kv_cache_dtype", "fp8",
    )  # fmt: skip
    assert only_change(EngineConfig.of({**BASE, "dtype": "float16"}), baseline) == ("dtype", "float16")
    assert only_change(EngineConfig.of({**BASE, "kv_cache_dtype": "fp8", "quantization": "fp8"}), baseline) is None
    assert only_change(EngineConfig.of({"kv_cache_dtype": "fp8"}), baseline) is None
    assert only_change(EngineConfig.of({**BASE, "max_num_seqs": 8}), baseline) is None
