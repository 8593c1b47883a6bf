"""What is refused whatever the memory, and what never is."""

import pytest

from autotune.engine.failure_values import FailureClass
from autotune.preflight.cards import card_facts
from autotune.preflight.model import ModelFacts, facts_of
from autotune.preflight.rules import CHECKS, rule_texts, warnings
from autotune.preflight.study import StudyPreflight
from autotune.space.arguments import bundled_table
from autotune.space.config import EngineConfig

BROKEN = [
    ("tp_heads", "qwen3-14b", 8, {"tensor_parallel_size": 3}),
    ("tp_kv_heads", "gpt-oss-20b", 64, {"tensor_parallel_size": 3}),
    ("tp_vocabulary", "qwen3-14b", 16, {"tensor_parallel_size": 5}),
    ("tp_mlp", "gemma-7b", 64, {"tensor_parallel_size": 7}),
    ("moe_width", "gpt-oss-120b", 8, {"tensor_parallel_size": 7}),
    ("eplb", "gpt-oss-20b", 4, {"tensor_parallel_size": 2, "enable_eplb": True}),
    ("eplb", "gpt-oss-20b", 4, {"enable_expert_parallel": True, "enable_eplb": True}),
    ("ep_needs_experts", "qwen3-14b", 4, {"tensor_parallel_size": 2, "enable_expert_parallel": True}),
    ("ep_experts", "gpt-oss-20b", 64, {"tensor_parallel_size": 64, "enable_expert_parallel": True}),
    ("fp8_blocks_mlp", "qwen3-235b-fp8", 8, {"tensor_parallel_size": 8}),
    ("world_size", "qwen3-14b", 1, {"tensor_parallel_size": 2}),
    ("world_size", "qwen3-14b", 4, {"tensor_parallel_size": 4, "data_parallel_size": 2}),
    ("pipeline_layers", "qwen3-14b", 64, {"pipeline_parallel_size": 41}),
    ("batch_below_seqs", "qwen3-14b", 1, {"max_num_seqs": 256, "max_num_batched_tokens": 128}),
    ("batch_below_seqs", "qwen3-14b", 1, {"max_num_seqs": 32768}),
    ("batch_below_length", "qwen3-14b", 1, {"enable_chunked_prefill": False, "max_num_batched_tokens": 2048}),
    ("long_prefill", "qwen3-14b", 1, {"max_model_len": 4096, "long_prefill_token_threshold": 8192}),
    ("active_seqs", "qwen3-14b", 1, {"max_num_seqs": 32, "max_num_active_seqs": 64}),
    ("model_length", "qwen3-14b", 1, {"max_model_len": "64K"}),
    ("positive", "qwen3-14b", 1, {"max_num_seqs": 0}),
    ("utilization", "qwen3-14b", 1, {"gpu_memory_utilization": 1.5}),
    ("block_size", "qwen3-14b", 1, {"block_size": 20}),
    ("kv_e5m2", "qwen3-14b", 1, {"quantization": "fp8", "kv_cache_dtype": "fp8_e5m2"}),
    ("quantization_mismatch", "qwen3-235b-fp8", 4, {"tensor_parallel_size": 4, "quantization": "awq"}),
    ("capture_sizes", "qwen3-14b", 1, {"cudagraph_capture_sizes": [1, 256], "max_cudagraph_capture_size": 512}),
    ("speculative_model", "qwen3-14b", 1, {"speculative_config": {"method": "eagle3", "num_speculative_tokens": 3}}),
    ("speculative_tokens", "qwen3-14b", 1, {"speculative_config": '{"method": "ngram", "num_speculative_tokens": 0}'}),
]  # fmt: skip

LEGAL = [
    ("qwen3-235b-fp8", 8, {"tensor_parallel_size": 8, "enable_expert_parallel": True}),
    ("qwen3-235b-fp8", 4, {"tensor_parallel_size": 4}),
    ("deepseek-r1", 16, {"tensor_parallel_size": 16}),
    ("qwen3-14b", 1, {"tensor_parallel_size": 8, "nnodes": 8}),
    ("qwen3-14b", 1, {"max_num_seqs": 256, "max_num_batched_tokens": 256}),
    ("qwen3-14b", 1, {"enable_chunked_prefill": False}),
    ("qwen3-14b", 1, {"max_model_len": "auto"}),
    ("gpt-oss-20b", 2, {"tensor_parallel_size": 2, "enable_expert_parallel": True, "enable_eplb": True}),
    ("qwen3-14b", 1, {"max_model_len": 65536, "hf_overrides": {"rope_scaling": {"factor": 4.0}}}),
    ("deepseek-r1", 8, {"tensor_parallel_size": 8, "block_size": 1}),
    ("qwen3-14b", 1, {"kv_cache_dtype": "fp8_e5m2"}),
    ("qwen3-14b", 1, {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}),
    ("gpt-oss-120b", 3, {"tensor_parallel_size": 1, "data_parallel_size": 3, "enable_expert_parallel": True}),
]  # fmt: skip


def preflight(facts: ModelFacts | None, gpus: int | None, card: str = "b200") -> StudyPreflight:
    return StudyPreflight(facts, card_facts(card), gpus, bundled_table())


@pytest.mark.parametrize(("rule", "model", "gpus", "args"), BROKEN)
def test_what_breaks_a_rule_is_refused_with_what_is_legal(
    models: dict[str, ModelFacts], rule: str, model: str, gpus: int, args: dict
) -> None:
    found = preflight(models[model], gpus).refusals(EngineConfig.of(args))
    assert rule in [one.rule for one in found]
    refusal = next(one for one in found if one.rule == rule)
    assert "{" not in refusal.reason + refusal.legal + refusal.advice.text
    outcome = refusal.outcome
    assert not outcome.started
    assert outcome.violation > 0
    assert outcome.advice[0].parameter


@pytest.mark.parametrize(("model", "gpus", "args"), LEGAL)
def test_what_is_or_could_be_legal_breaks_no_rule(
    models: dict[str, ModelFacts], model: str, gpus: int, args: dict
) -> None:
    found = preflight(models[model], gpus).refusals(EngineConfig.of(args))
    assert [one.rule for one in found if one.rule in CHECKS or one.rule == "argument"] == []


def test_unknown_arguments_are_refused_and_lost_variables_only_warned_of(models: dict[str, ModelFacts]) -> None:
    config = EngineConfig.of({"max_num_sequences": 4})
    refused = preflight(models["qwen3-14b"], 1).refuse(config)
    assert refused is not None
    assert refused.cause == "refused_cli_unknown_argument"
    assert "max_num_seqs" in refused.advice[0].text
    lost = EngineConfig.of({}, {"VLLM_ATTENTION_BACKEND": "FLASHINFER"})
    assert preflight(models["qwen3-14b"], 1).refuse(lost) is None
    assert any("VLLM_ATTENTION_BACKEND" in sentence for sentence in warnings(lost, bundled_table()))


def test_none_of_the_launches_that_are_known_to_have_run_is_refused(
    models: dict[str, ModelFacts], launches: list[dict]
) -> None:
    refused = []
    for launch in launches:
        facts = models[launch["model"]] if launch["model"] else None
        card = card_facts(launch["card"]) if launch["card"] else None
        judge = StudyPreflight(facts, card, launch["gpus"])
        outcome = judge.refuse(EngineConfig.of(launch["args"], launch["env"]))
        if outcome is not None:
            refused.append((launch["id"], outcome.reason))
    assert len(launches) == 25
    assert refused == []


@pytest.mark.parametrize(
    ("model", "images", "args", "rule"),
    [
        ("qwen3-14b", 1, {}, "images_model"),
        ("qwen3-14b", 0, {}, None),
        ("gemma-3-27b", 2, {}, None),
        ("gemma-3-27b", 2, {"limit_mm_per_prompt": {"image": 2, "video": 0}}, None),
        ("gemma-3-27b", 2, {"limit_mm_per_prompt": {"image": 1}}, "images_limit"),
        ("gemma-3-27b", 2, {"limit_mm_per_prompt": {"image": {"count": 1, "width": 512}}}, "images_limit"),
        ("gemma-3-27b", 2, {"limit_mm_per_prompt": {"image": {"count": 2, "width": 512}}}, None),
        ("gemma-3-27b", 2, {"limit_mm_per_prompt": '{"image": 0}'}, "images_limit"),
        ("gemma-3-27b", 1, {"language_model_only": True}, "images_limit"),
        ("gemma-3-27b", 0, {"language_model_only": True}, None),
    ],
)
def test_images_of_the_load_need_a_model_and_a_limit_that_take_them(
    models: dict[str, ModelFacts], model: str, images: int, args: dict, rule: str | None
) -> None:
    judge = StudyPreflight(models[model], card_facts("b200"), 1, bundled_table(), images=images)
    found = [one for one in judge.refusals(EngineConfig.of(args)) if one.rule in CHECKS]
    assert [one.rule for one in found] == ([rule] if rule else [])
    assert all("{" not in one.reason + one.legal for one in found)


def test_every_rule_has_words_and_a_class_of_failure() -> None:
    texts = rule_texts()
    assert set(CHECKS) | {"hybrid_seqs", "argument", "split"} == set(texts)
    assert {text.cause for text in texts.values()} <= {member.value for member in FailureClass}


def test_without_model_and_card_the_rules_that_need_neither_still_hold() -> None:
    judge = StudyPreflight(None, None)
    assert judge.refuse(EngineConfig.of({"max_num_seqs": 512, "max_num_batched_tokens": 256})) is not None
    assert judge.refuse(EngineConfig.of({"tensor_parallel_size": 3, "max_num_seqs": 16384})) is None


def test_hybrids_keep_a_block_of_state_for_every_sequence() -> None:
    facts = facts_of({
        "architectures": ["Qwen3NextForCausalLM"], "num_hidden_layers": 48, "hidden_size": 2048,
        "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "intermediate_size": 5120,
        "vocab_size": 151936, "max_position_embeddings": 262144, "num_experts": 512, "num_experts_per_tok": 10,
        "moe_intermediate_size": 512, "linear_num_value_heads": 32, "linear_num_key_heads": 16,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 12,
    })  # fmt: skip
    judge = StudyPreflight(facts, card_facts("h100"), 2)
    args = {"tensor_parallel_size": 2, "max_model_len": 4096, "quantization": "fp8"}
    refused = judge.refuse(EngineConfig.of({**args, "max_num_seqs": 4096, "max_num_batched_tokens": 8192}))
    assert refused is not None
    assert refused.cause == "refused_mamba_cache_blocks"
    assert judge.refuse(EngineConfig.of({**args, "max_num_seqs": 256})) is None
