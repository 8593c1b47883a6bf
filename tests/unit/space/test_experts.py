"""Expert settings: legal points for the machine and model at hand, each with its source."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from autotune.errors import SpecError
from autotune.space.catalogue import SpaceContext, load_space
from autotune.space.config import EngineConfig, FrozenValue
from autotune.space.experts import choose_experts, experts
from autotune.space.layout import Layout

GIB = 2**30
DENSE: Mapping[str, FrozenValue] = {
    "num_attention_heads": 32, "num_key_value_heads": 2, "num_hidden_layers": 40, "max_position_embeddings": 32768,
    "weight_bytes": 18 * GIB, "is_moe": False,
}  # fmt: skip
MOE: Mapping[str, FrozenValue] = {
    "num_attention_heads": 64, "num_key_value_heads": 4, "num_hidden_layers": 94, "max_position_embeddings": 40960,
    "num_experts": 128, "moe_intermediate_size": 1536, "weight_bytes": 470 * GIB, "is_moe": True,
}  # fmt: skip
CASES = {
    "cpu": ("cpu", SpaceContext(gpus=0)),
    "one card, dense": ("h100-dense", SpaceContext(1, DENSE, card="h100", gpu_memory=80 * GIB)),
    "eight cards, dense": ("h100-dense", SpaceContext(8, DENSE, card="h100", gpu_memory=80 * GIB)),
    "one card, experts": ("h100-moe", SpaceContext(1, {**MOE, "weight_bytes": 60 * GIB}, gpu_memory=80 * GIB)),
    "eight cards, experts": ("h100-moe-multi-gpu", SpaceContext(8, MOE, gpu_memory=80 * GIB)),
    "nothing known": ("h100-dense", SpaceContext(gpus=2)),
}


@pytest.mark.parametrize("case", CASES)
def test_every_expert_is_a_legal_point_with_a_source(case: str) -> None:
    name, context = CASES[case]
    space = load_space(name, context)
    found = experts(space, context)
    assert 4 <= len(found) <= 8
    for expert in found:
        assert set(expert.point) == space.active(expert.point)
        assert space.violations(expert.point) == ()
        for key, value in expert.point.items():
            assert value in space.by_name[key].values
        assert expert.source
        assert expert.note
    hashes = {space.config(expert.point, EngineConfig()).hash for expert in found}
    assert len(hashes) == len(found)


def test_the_measured_best_comes_first_for_a_dense_model() -> None:
    name, context = CASES["one card, dense"]
    first = experts(load_space(name, context), context)[0]
    assert first.point["quantization"] == "fp8"
    assert (first.point["max_num_seqs"], first.point["max_num_batched_tokens"]) == (256, 768)
    assert first.point["max_cudagraph_capture_size"] == 1024


def test_a_model_that_is_quantised_already_gets_no_fp8_weights() -> None:
    context = SpaceContext(1, {**DENSE, "quantization": "awq"}, gpu_memory=80 * GIB)
    found = experts(load_space("h100-dense", context), context)
    assert found
    assert all("quantization" not in expert.point for expert in found)


def test_layouts_hold_the_weights() -> None:
    name, context = CASES["eight cards, experts"]
    for expert in experts(load_space(name, context), context):
        layout = Layout.parse(str(expert.point["layout"]))
        parts = layout.gpus if layout.expert else layout.tensor
        share = 0.5 if expert.point.get("quantization") == "fp8" else 1.0
        assert 470 * GIB * share / parts < 80 * GIB


def test_a_small_model_is_replicated_for_throughput_and_split_for_latency() -> None:
    name, context = CASES["eight cards, dense"]
    layouts = {expert.name: expert.point["layout"] for expert in experts(load_space(name, context), context)}
    assert layouts["throughput first"] == "tp1-dp8"
    assert layouts["latency first"] == "tp8-dp1"
    assert layouts["bf16 weights, steps within the graphs"] == "tp1-dp1"


ENTRY = "experts:\n  - name: mine\n    source: me\n    args: {max_num_seqs: 100, kv_cache_dtype: fp8, dtype: half}\n"


def test_values_are_snapped_and_what_is_not_tuned_is_said(
    write_space: Callable[[str, str], Path],
) -> None:
    write_space("experts", ENTRY)
    write_space("mine", "parameters:\n  max_num_seqs: {ladder: [64, 128]}\n  kv_cache_dtype: {choice: [null, fp8]}\n")
    context = SpaceContext(gpus=1)
    (expert,) = experts(load_space("mine", context), context)
    assert expert.point == {"max_num_seqs": 128, "kv_cache_dtype": "fp8"}
    assert expert.note == "Snapped: max_num_seqs 100 became 128. Not tuned here: dtype."


def test_what_the_space_does_not_allow_is_dropped_with_a_note(write_space: Callable[[str, str], Path]) -> None:
    write_space("experts", ENTRY)
    write_space("mine", "parameters:\n  max_num_seqs: {ladder: [64, 128]}\nrequire:\n  - max_num_seqs < 100\n")
    context = SpaceContext(gpus=1)
    choice = choose_experts(load_space("mine", context), context)
    assert choice.experts == ()
    assert choice.dropped == ("mine: `max_num_seqs < 100` does not hold (max_num_seqs=128)",)


def test_a_mistake_in_the_file_names_its_line(write_space: Callable[[str, str], Path]) -> None:
    path = write_space("experts", "experts:\n  - name: mine\n    source: me\n    when: gpus >\n")
    context = SpaceContext(gpus=1)
    with pytest.raises(SpecError) as raised:
        experts(load_space("h100-dense", context), context)
    assert (raised.value.file, raised.value.line, raised.value.key) == (str(path), 4, "experts[0].when")
