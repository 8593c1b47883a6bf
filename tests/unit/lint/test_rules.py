"""Every rule fires on what it is about and stays silent beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.adopt.registry import adopt_text
from autotune.lint.check import known_names, lint, rules
from autotune.space.arguments import bundled_table

GOOD = "--max-num-seqs 256 --max-num-batched-tokens 8192 --max-model-len 8192 --gpu-memory-utilization 0.9"
CASES = [  # rule, configuration that has it
    ("batched_tokens_below_seqs", "--max-num-seqs 512 --max-num-batched-tokens 256"),
    ("batched_tokens_at_the_least", "--max-num-seqs 512 --max-num-batched-tokens 512"),
    ("batched_tokens_below_context", "--no-enable-chunked-prefill --max-num-batched-tokens 2048 --max-model-len 4096"),
    ("graphs_do_not_cover", "--max-num-seqs 1024 --max-num-batched-tokens 8192"),
    ("graphs_do_not_cover", "--max-num-seqs 256 --cudagraph-capture-sizes 1 2 128"),
    ("graphs_do_not_cover", "--max-num-seqs 256 --compilation-config '{\"max_cudagraph_capture_size\": 64}'"),
    ("eager", "--enforce-eager"),
    ("utilization_beyond_the_card", "--gpu-memory-utilization 1.2"),
    ("utilization_at_the_edge", "--gpu-memory-utilization 0.97"),
    ("utilization_wasted", "--gpu-memory-utilization 0.5"),
    ("fp8_kv_without_scales", "--kv-cache-dtype fp8"),
    ("prefix_caching_off", "--no-enable-prefix-caching"),
    ("chunked_prefill_off", "--no-enable-chunked-prefill"),
    ("async_scheduling_off", "--no-async-scheduling"),
    ("few_sequences", "--max-num-seqs 4"),
    ("custom_all_reduce_off", "-tp 2 --disable-custom-all-reduce"),
    ("synthetic_acceptance", '--speculative-config \'{"rejection_sample_method": "synthetic", "model": "x"}\''),
    ("remote_code", "--trust-remote-code"),
    ("open_port", "--host 0.0.0.0"),
    ("context_by_the_model", "--max-num-seqs 64"),
    ("unknown_argument", "--max-num-sequences 64"),
    ("unknown_argument", "--swap-space 4"),
    ("equals_default", "--tensor-parallel-size 1"),
    ("equals_default", "--block-size 16 --kv-cache-dtype auto"),
]
ENVIRONMENT = [
    ("expandable_segments", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "-tp 2"),
    (
        "expandable_segments_with_connector",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "--kv-transfer-config.kv_connector NixlConnector",
    ),
    ("launch_blocking", "CUDA_LAUNCH_BLOCKING=1", ""),
    ("debug_log", "VLLM_LOGGING_LEVEL=DEBUG", ""),
    ("nccl_trace", "NCCL_DEBUG=TRACE", ""),
    ("trace_functions", "VLLM_TRACE_FUNCTION=1", ""),
    ("development_mode", "VLLM_SERVER_DEV_MODE=1", ""),
    ("peer_access_off", "NCCL_P2P_DISABLE=1", "-tp 2"),
    ("fewer_gpus_visible", "CUDA_VISIBLE_DEVICES=0,1", "-tp 4"),
    ("unknown_variable", "VLLM_ATTENTION_BACKENT=FLASHINFER", ""),
]


def found(script: str) -> set[str]:
    return {finding.rule for finding in lint(adopt_text(script, Path("start.sh")))}


@pytest.mark.parametrize(("rule", "arguments"), CASES)
def test_a_rule_fires_on_arguments(rule: str, arguments: str) -> None:
    assert rule in found(f"vllm serve m {arguments}\n")


@pytest.mark.parametrize(("rule", "variable", "arguments"), ENVIRONMENT)
def test_a_rule_fires_on_variables(rule: str, variable: str, arguments: str) -> None:
    assert rule in found(f"{variable} vllm serve m {GOOD} {arguments}\n")


def test_a_good_configuration_has_no_finding() -> None:
    assert found(f"VLLM_API_KEY=$KEY vllm serve m {GOOD} --host 0.0.0.0 -tp 2\n") == set()


def test_gpus_that_are_given_and_not_used() -> None:
    run = "docker run --gpus {gpus} vllm/vllm-openai:v0.31.0 --model m -tp {tp}\n"
    assert "gpus_unused" in found(run.format(gpus=8, tp=2))
    assert "more_gpus_than_given" in found(run.format(gpus=2, tp=4))
    assert not {"gpus_unused", "more_gpus_than_given"} & found(run.format(gpus=4, tp=4))


@pytest.mark.parametrize(
    ("image", "floats"),
    [("vllm/vllm-openai", True), ("vllm/vllm-openai:latest", True), ("vllm/vllm-openai:v0.31.0", False),
     ("vllm/vllm-openai:nightly-abc", True), ("vllm/vllm-openai@sha256:0000", False)],
)  # fmt: skip
def test_images_without_a_release(image: str, floats: bool) -> None:
    assert ("floating_image" in found(f"docker run {image} --model m\n")) is floats


def test_every_rule_is_tried_here() -> None:
    tried = {case[0] for case in (*CASES, *ENVIRONMENT)} | {"gpus_unused", "more_gpus_than_given", "floating_image"}
    assert {rule.name for rule in rules()} <= tried


def test_rules_only_read_names_that_exist() -> None:
    known = known_names(bundled_table())
    for rule in rules():
        assert {name for name in rule.when.names if not name.startswith("env.")} <= known, rule.name
        assert rule.source
        assert rule.hint
        assert (
            rule.text[0].islower() or rule.text.split()[0].isupper() or "=" in rule.text.split()[0] or "{" in rule.text
        )


def test_findings_stand_at_their_line_and_the_worst_comes_first() -> None:
    script = "vllm serve m \\\n  --enforce-eager \\\n  --swap-space 4 \\\n  --gpu-memory-utilization 0.99\n"
    findings = lint(adopt_text(script, Path("a.sh")))
    assert [(f.rule, f.line) for f in findings[:3]] == [
        ("unknown_argument", 3), ("eager", 2), ("utilization_at_the_edge", 4),
    ]  # fmt: skip
