"""Formats beside the twenty public files: llm-d, KServe, StatefulSet, systemd."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.adopt.registry import SOURCES, adopt_file, adopt_text
from autotune.errors import SpecError

FOLDER = Path(__file__).parents[2] / "data" / "launch_configs"


def test_llm_d_values() -> None:
    adopted = adopt_file(FOLDER / "more_llm_d_values.yaml")
    assert (adopted.format, adopted.model) == ("llm-d", "meta-llama/Llama-3.1-70B-Instruct")
    assert adopted.config.get("tensor_parallel_size") == 4
    assert adopted.config.get("max_num_seqs") == 128
    assert adopted.config.get("block_size") == 64
    assert adopted.config.get("kv_transfer_config.kv_connector") == "NixlConnector"
    assert adopted.secrets == ("HF_TOKEN",)
    assert adopted.reading.gpus == 4


def test_kserve_sets_the_flags_of_its_own_server_aside() -> None:
    adopted = adopt_file(FOLDER / "more_inference_service.yaml")
    assert (adopted.format, adopted.model) == ("kserve", "meta-llama/Llama-3.1-8B-Instruct")
    assert dict(adopted.config.args) == {"max_model_len": 16384, "max_num_seqs": 64}
    assert not adopted.unknown
    assert adopted.secrets == ("HF_TOKEN",)


def test_arguments_in_a_variable() -> None:
    adopted = adopt_file(FOLDER / "more_llm_inference_service.yaml")
    assert (adopted.format, adopted.model) == ("kserve", "Qwen/Qwen3-32B")
    assert dict(adopted.config.args) == {"kv_cache_dtype": "fp8", "max_num_seqs": 96}
    assert adopted.version == "0.31.0"


def test_the_container_with_vllm_is_found_among_others() -> None:
    adopted = adopt_file(FOLDER / "more_statefulset.yaml")
    assert adopted.model == "mistralai/Mistral-Small-3.2-24B-Instruct-2506"
    assert adopted.config.get("tensor_parallel_size") == 2
    assert adopted.config.get("served_model_name") == ("chat", "chat-large")
    assert adopted.config.get("gpu_memory_utilization") == 0.9
    assert dict(adopted.config.env)["NCCL_DEBUG"] == "WARN"
    assert adopted.version == ""


def test_a_systemd_unit() -> None:
    adopted = adopt_file(FOLDER / "more_vllm.service")
    assert (adopted.format, adopted.model) == ("systemd", "Qwen/Qwen3-8B")
    assert adopted.config.get("max_model_len") == 32000
    assert dict(adopted.config.env)["OMP_NUM_THREADS"] == "8"
    assert any("/etc/vllm/secrets" in note for note in adopted.notes)


def test_one_of_several_engines_can_be_chosen() -> None:
    text = "services:\n" + "".join(
        f"  {name}:\n    image: vllm/vllm-openai:v0.31.0\n    command: --model m --max-num-seqs {seqs}\n"
        for name, seqs in (("chat", 64), ("code", 32))
    )
    first = adopt_text(text, Path("compose.yaml"))
    assert first.config.get("max_num_seqs") == 64
    assert any("code" in note for note in first.notes)
    assert adopt_text(text, Path("compose.yaml"), engine="code").config.get("max_num_seqs") == 32
    with pytest.raises(SpecError, match="chat, code"):
        adopt_text(text, Path("compose.yaml"), engine="talk")


def test_production_stack_switches_prefix_caching_off_where_the_key_is_missing() -> None:
    text = (
        "servingEngineSpec:\n  modelSpec:\n  - name: a\n    modelURL: m\n    repository: vllm/vllm-openai\n"
        "    tag: v0.31.0\n    vllmConfig:\n      maxModelLen: 4096\n"
    )
    adopted = adopt_text(text, Path("values.yaml"))
    assert adopted.config.get("enable_prefix_caching") is False
    assert any("prefix caching off" in note for note in adopted.notes)


@pytest.mark.parametrize("name", sorted(SOURCES.keys() - {"vllm-yaml"}))
def test_a_format_that_does_not_fit_is_an_error_of_the_reader(name: str) -> None:
    with pytest.raises(SpecError):
        adopt_text("nothing: [here, to, read]\n", Path("a.yaml"), format=name)


def test_keys_that_vllm_does_not_have_are_named() -> None:
    adopted = adopt_text("max-num-sequences: 4\nmax-num-seqs: 8\n", Path("a.yaml"), format="vllm-yaml")
    assert [(item.name, item.hint) for item in adopted.unknown] == [
        ("max-num-sequences", "Did you mean --max-num-seqs?")
    ]


def test_prefill_and_decode_of_a_recipe_are_two_engines() -> None:
    text = (
        "model: {name: m}\nbackend:\n  vllm_config:\n    prefill:\n      max-num-seqs: 8\n"
        "    decode:\n      max-num-seqs: 256\n"
    )
    assert adopt_text(text, Path("r.yaml")).config.get("max_num_seqs") == 256
    assert adopt_text(text, Path("r.yaml"), engine="prefill").config.get("max_num_seqs") == 8


@pytest.mark.parametrize("spec", ["spec: {}\n", "{{- if x }}\nspec: {}\n{{ end }}\n"])
def test_a_template_is_named_as_such(spec: str) -> None:
    text = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {{ .Release.Name }}\n" + spec
    with pytest.raises(SpecError) as caught:
        adopt_text(text, Path("a.yaml"))
    assert "helm template" in str(caught.value.hint)
