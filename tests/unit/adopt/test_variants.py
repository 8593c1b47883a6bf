"""Ways of saying the same that people use: what stands in other files, in other words, or behind conditions."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.adopt.baseline import baseline_section
from autotune.adopt.registry import adopt_text
from autotune.adopt.values import Adopted
from autotune.export.patch import patch
from autotune.space.arguments import bundled_table

SECRETS = "HF_TOKEN=hf_" + "a" * 30 + "\nVLLM_USE_DEEP_GEMM='1'\nMODEL=org/model\nexport SEQS=48\n# NOT=this\n"


def adopted(folder: Path, name: str, text: str, **files: str) -> Adopted:
    for file, body in files.items():
        (folder / file.replace("__", ".")).write_text(body)
    return adopt_text(text, folder / name)


def test_a_folded_text_has_no_marks_and_knows_its_places(tmp_path: Path) -> None:
    text = (
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai:v0.32.0\n"
        "    command: [sh, -c]\n    args:\n    - >-\n      vllm serve org/model\n      --max-num-seqs 64\n      -tp 2\n"
    )
    found = adopted(tmp_path, "a.yaml", text)
    assert (found.model, dict(found.config.args)["max_num_seqs"]) == ("org/model", 64)
    assert not found.unknown
    place = next(place for place in found.places if place.name == "max_num_seqs")
    assert [text[slice(*span)] for word in place.words if (span := word.text.span)] == ["--max-num-seqs", "64"]


def test_files_of_variables_are_read_without_their_secrets(tmp_path: Path) -> None:
    unit = (
        "[Service]\nEnvironmentFile=-/etc/vllm/vllm.env\nExecStart=/opt/bin/vllm serve $MODEL --max-num-seqs ${SEQS}\n"
    )
    compose = (
        "services:\n  a:\n    image: vllm/vllm-openai:v0.32.0\n    env_file: [vllm.env, {path: gone.env}]\n"
        "    command: --model m\n"
    )
    docker = "docker run --env-file vllm.env -e VLLM_USE_DEEP_GEMM=0 vllm/vllm-openai:v0.32.0 --model m\n"
    found = adopted(tmp_path, "a.service", unit, vllm__env=SECRETS)
    assert (found.model, found.config.get("max_num_seqs")) == ("org/model", 48)
    for name, text, gemm in (("a.service", unit, "1"), ("compose.yaml", compose, "1"), ("a.sh", docker, "0")):
        found = adopted(tmp_path, name, text)
        assert dict(found.config.env) == {"HF_TOKEN": "${HF_TOKEN}", "VLLM_USE_DEEP_GEMM": gemm}, name
        assert found.secrets == ("HF_TOKEN",)
        assert not found.exposed
    assert any("gone.env" in note for note in adopted(tmp_path, "compose.yaml", compose).notes)


def test_a_script_beside_it_is_followed_and_may_name_itself(tmp_path: Path) -> None:
    script = 'source "$(dirname "$0")/env.sh"\n. ./lost.sh\nvllm serve $MODEL --max-num-seqs $SEQS\n'
    found = adopted(tmp_path, "a.sh", script, env__sh="MODEL=org/model\nif true; then SEQS=48\n. ./env.sh\n")
    assert (found.model, found.config.get("max_num_seqs")) == ("org/model", 48)
    assert any("lost.sh" in text for text in found.unread)


def test_a_comment_between_the_lines_of_a_unit(tmp_path: Path) -> None:
    unit = "[Service]\nExecStart=vllm serve m \\\n  # why not\n  --max-num-seqs 8 \\\n; nor this\n  -tp 2\nUser=me\n"
    assert dict(adopted(tmp_path, "a.service", unit).config.args) == {"max_num_seqs": 8, "tensor_parallel_size": 2}


def test_a_service_extends_others(tmp_path: Path) -> None:
    common = (
        "services:\n  engine:\n    image: vllm/vllm-openai:v0.32.0\n"
        "    environment: {VLLM_USE_DEEP_GEMM: 1, NCCL_DEBUG: INFO}\n"
        "    command: [--model, m, --max-num-seqs, '100']\n"
    )
    text = (
        "services:\n  a:\n    extends: {file: common.yaml, service: engine}\n    environment: {NCCL_DEBUG: WARN}\n"
        "  b:\n    extends: a\n    command: --model m --max-num-seqs 7\n"
        "  c:\n    extends: c\n    image: vllm/vllm-openai\n"
    )
    found = adopted(tmp_path, "compose.yaml", text, common__yaml=common)
    assert dict(found.config.env) == {"NCCL_DEBUG": "WARN", "VLLM_USE_DEEP_GEMM": "1"}
    assert found.config.get("max_num_seqs") == 100
    assert found.line_of_argument("max_num_seqs") is None  # it stands in the other file
    own = adopt_text(text, tmp_path / "compose.yaml", engine="b")
    assert (own.config.get("max_num_seqs"), own.line_of_argument("max_num_seqs")) == (7, 7)
    assert dict(own.config.env) == dict(found.config.env)
    assert any("extended" in text for text in adopt_text(text, tmp_path / "compose.yaml", engine="c").unread)


def test_config_maps_of_the_same_file(tmp_path: Path) -> None:
    text = (
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {SEQS: '9', NCCL_DEBUG: WARN}\n---\n"
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai:v0.32.0\n"
        "    args: [--model, m, --max-num-seqs, $(SEQS), -tp, $(TP), --max-model-len, $(LEN)]\n"
        "    envFrom: [{configMapRef: {name: c}}, {secretRef: {name: s}}]\n"
        "    env: [{name: TP, valueFrom: {configMapKeyRef: {name: c, key: SEQS}}}]\n"
    )
    found = adopt_text(text, tmp_path / "a.yaml", given={"LEN": "4096"})
    assert [found.config.get(name) for name in ("max_num_seqs", "tensor_parallel_size", "max_model_len")] == [
        9,
        9,
        4096,
    ]
    assert dict(found.config.env)["NCCL_DEBUG"] == "WARN"
    assert any("secret s" in note for note in found.notes)


def test_parallelism_of_an_llm_inference_service(tmp_path: Path) -> None:
    text = (
        "apiVersion: serving.kserve.io/v1alpha1\nkind: LLMInferenceService\nspec:\n  model: {uri: 'hf://org/m'}\n"
        "  parallelism: {tensor: 4, data: 2, expert: true}\n  template:\n    containers:\n"
        "    - {image: 'vllm/vllm-openai:v0.32.0', args: [--max-num-seqs, '8']}\n"
    )
    alone = adopted(tmp_path, "a.yaml", text)
    assert dict(alone.config.args) == {"max_num_seqs": 8}
    assert any("tensor=4" in sentence for sentence in alone.unread)
    group = adopted(tmp_path, "a.yaml", text + "  worker: {containers: []}\n")
    assert dict(group.config.args) == {
        "max_num_seqs": 8, "tensor_parallel_size": 4, "data_parallel_size": 2, "enable_expert_parallel": True,
    }  # fmt: skip


def test_what_the_production_stack_chart_ignores_or_adds(tmp_path: Path) -> None:
    text = (
        "servingEngineSpec:\n  vllmApiKey: {secretName: s, secretKey: k}\n  modelSpec:\n  - name: a\n    modelURL: m\n"
        "    repository: vllm/vllm-openai\n    tag: v0.31.0\n    hf_token: hf_" + "b" * 30 + "\n    enableLoRA: true\n"
        "    lmcacheConfig: {enabled: true}\n"
        "    vllmConfig: {maxNumSeqs: 8, maxNumBatchedTokens: 8192, enablePrefixCaching: true}\n"
    )
    found = adopted(tmp_path, "values.yaml", text)
    assert dict(found.config.args) == {"enable_lora": True, "enable_prefix_caching": True, "max_num_seqs": 8}
    assert found.secrets == ("HF_TOKEN", "VLLM_API_KEY")
    assert baseline_section(found)["engine"] == {"env": {"HF_TOKEN": "${HF_TOKEN}"}}, "a trial has a key of its own"
    assert found.exposed == ("HF_TOKEN",)
    assert any("maxNumBatchedTokens" in sentence for sentence in found.unread)
    assert any("LMCache" in note for note in found.notes)


@pytest.mark.parametrize(
    ("words", "name", "value", "hint"),
    [
        ("--enable-chunked-prefill=False", "enable_chunked_prefill", False, "Write --no-enable-chunked-prefill."),
        ("--enable-prefix-caching true", "enable_prefix_caching", True, "Write --enable-prefix-caching."),
        ("-O.cudagraph_mode=FULL", "compilation_config.cudagraph_mode", "FULL", "--compilation-config"),
        ("-O '{\"mode\": 3}'", "compilation_config.mode", 3, "--compilation-config"),
    ],
)
def test_what_the_parser_refuses_is_named_and_meant(words: str, name: str, value: object, hint: str) -> None:
    """vLLM 0.32.0's parser ends with an error for each of them."""
    found = adopt_text(f"vllm serve m {words}\n", Path("a.sh"))
    assert dict(found.config.args) == {name: value}
    assert len(found.unknown) == 1
    assert found.unknown[0].fatal
    assert hint in found.unknown[0].hint
    assert found.model == "m"


def test_a_key_by_reference_is_a_secret_and_asks_for_no_value() -> None:
    found = adopt_text("vllm serve m --api-key $KEY --hf-overrides.a 1\n", Path("a.sh"))
    assert (found.secrets, found.unread) == (("api_key",), ())


def test_two_servers_of_a_script_are_told_apart() -> None:
    script = "vllm serve a --port 8001 &\nvllm serve b --port=8002 &\nvllm serve c &\n"
    assert any("8002, 3" in note for note in adopt_text(script, Path("a.sh")).notes)
    assert [adopt_text(script, Path("a.sh"), engine=name).model for name in ("8001", "8002", "3")] == ["a", "b", "c"]


def test_a_server_on_another_host() -> None:
    found = adopt_text("A=1 ssh -tp 22 -4 host cd /srv '&&' 'B=$X vllm serve m -tp 2'\n", Path("a.sh"))
    assert (found.model, dict(found.config.args)) == ("m", {"tensor_parallel_size": 2})
    assert "A" not in dict(found.config.env)


def test_units_that_start_a_shell_or_a_container(tmp_path: Path) -> None:
    unit = (
        "[Service]\nEnvironment=MODEL=org/m SEQS=8\nExecStart=\n"
        "ExecStart=/bin/sh -c 'vllm serve $MODEL --max-num-seqs $SEQS'\n"
    )
    found = adopted(tmp_path, "a.service", unit)
    assert (found.model, found.config.get("max_num_seqs")) == ("org/m", 8)
    podman = "[Container]\nImage=vllm/vllm-openai:v0.31.0\nExec=--model org/m --max-num-seqs 8\n[Service]\nRestart=no\n"
    found = adopted(tmp_path, "a.container", podman)
    assert (found.model, found.config.get("max_num_seqs"), found.version) == ("org/m", 8, "0.31.0")


def test_a_group_gives_its_pods_their_number(tmp_path: Path) -> None:
    text = (
        "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nspec:\n  leaderWorkerTemplate:\n    size: 4\n"
        "    leaderTemplate:\n      spec:\n        containers:\n        - image: vllm/vllm-openai:v0.32.0\n"
        "          command: [bash, -c, 'vllm serve m -pp ${LWS_GROUP_SIZE} -tp 8']\n"
    )
    assert adopted(tmp_path, "a.yaml", text).config.get("pipeline_parallel_size") == 4


@pytest.mark.parametrize(
    "text",
    [
        'vllm:\n  model: m\n  extraArgs: "--max-num-seqs 64 -tp 2"   # here\n',
        "engine:\n  command: vllm serve m --max-num-seqs 64 -tp 2\nother: 1\n",
        "engine:\n  command: [vllm, serve, m]\n  args:\n  - --max-num-seqs=64\n  - -tp=2\n",
    ],
)
def test_command_lines_in_other_values_files(tmp_path: Path, text: str) -> None:
    found = adopted(tmp_path, "values.yaml", text + "image: {repository: vllm/vllm-openai, tag: v0.30.1}\n")
    assert (found.format, found.model, found.version) == ("helm", "m", "0.30.1")
    assert {name: value for name, value in found.config.args if name != "model_tag"} == {
        "max_num_seqs": 64, "tensor_parallel_size": 2,
    }  # fmt: skip
    changed = patch(found, found.config.merged({"max_num_seqs": 8, "block_size": 32}), found.config, bundled_table())
    assert not changed.by_hand
    again = adopt_text(changed.text, found.path)
    assert (again.config.get("max_num_seqs"), again.config.get("block_size")) == (8, 32)
    assert ("# here" in changed.text) is ("# here" in text)


def test_the_model_that_kserve_mounts(tmp_path: Path) -> None:
    text = (
        "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nspec:\n  predictor:\n    containers:\n"
        "    - image: vllm/vllm-openai:v0.32.0\n      args: [--model, /mnt/models]\n"
        "      env: [{name: STORAGE_URI, value: 'hf://org/m'}]\n"
    )
    assert adopted(tmp_path, "a.yaml", text).model == "org/m"
