"""Secrets leave no trace."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.engine.redaction import redact

SECRET = "Zk9-very_secret.Value42"


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve m --api-key {}",
        "vllm serve m --api-key={} --port 8000",
        "--hf-token '{}'",
        "--api-key one --api-key {}",
        "{{'model': 'm', 'api_key': '{}'}}",
        "{{'api_key': ['first', '{}']}}",
        '{{"api_key": "{}"}}',
        "HF_TOKEN={} vllm serve",
        "export VLLM_API_KEY={}",
        "OPENAI_API_KEY: {}",
        "AWS_SECRET_ACCESS_KEY={}",
        "Authorization: Bearer {}",
        '"Authorization": "Bearer {}"',
        "authorization=Basic {}",
        "https://user:{}@example.org/x",
        "https://bucket/x?X-Amz-Signature={}&a=b",
        "password={}",
    ],
)
def test_a_named_secret_is_replaced(text: str) -> None:
    shown = redact(text.format(SECRET))
    assert SECRET not in shown
    assert "[redacted]" in shown


@pytest.mark.parametrize(
    "secret",
    [
        "hf_abcdefghijklmnopqrstuv",
        "sk-proj-abcdefghijklmnop",
        "ghp_abcdefghijklmnopqrst",
        "nvapi-abcdefghijklmnopq",
        "AKIAABCDEFGHIJKLMNOP",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefgh",
    ],
)
def test_a_token_is_known_by_its_form(secret: str) -> None:
    assert secret not in redact(f"error near {secret}, giving up")


@pytest.mark.parametrize(
    "text",
    [
        "Small steps keep inter-token latency low",
        "Give it in hf_overrides, such as {...}",
        "max_num_batched_tokens (512) is smaller than max_model_len (2048)",
        "GPU KV cache size: 814,368 tokens",
        "Avg prompt throughput: 0.0 tokens/s",
        "{'max_num_seqs': 128, 'tokenizer': '/models/tok', 'api_key': None}",
        "num_speculative_tokens=3, prompt_token_ids_len=64",
        "--max-num-batched-tokens 2048",
        "KeyError: 'model.layers.0.weight'",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert redact(text) == text


@given(st.text(max_size=300))
def test_twice_is_once(text: str) -> None:
    once = redact(text)
    assert redact(once) == once
