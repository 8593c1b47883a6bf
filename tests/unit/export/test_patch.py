"""Adopt, tune, patch: only the tuned arguments change, the rest stays byte for byte."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.adopt.registry import adopt_file, adopt_text
from autotune.adopt.values import Adopted
from autotune.export.patch import Patch, patch
from autotune.space.arguments import bundled_table
from autotune.space.config import EngineConfig

FOLDER = Path(__file__).parents[2] / "data" / "launch_configs"
FILES = sorted([*json.loads((FOLDER / "expected.json").read_text()), *(p.name for p in FOLDER.glob("more_*"))])
THROUGH_VARIABLES = ("more_indirection.sh", "more_compose_anchors.yaml")
TABLE = bundled_table()
TUNED = ("max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "enable_prefix_caching", "kv_cache_dtype",
         "compilation_config.cudagraph_mode", "max_cudagraph_capture_size", "async_scheduling")  # fmt: skip


def patched(adopted: Adopted, new: dict[str, object], env: dict[str, str] | None = None) -> tuple[EngineConfig, Patch]:
    target = adopted.config.merged(new, env)
    return target, patch(adopted, target, adopted.config, TABLE)


def changed_words(before: str, after: str) -> set[str]:
    """Words that one text has more often than the other, without quotes and list marks."""
    old, new = (Counter(re.split(r"[\s,\\\"'{}:$]+", text)) for text in (before, after))
    return {word for word in ((old - new) + (new - old)) if word not in ("", "-")}


def settings_of(adopted: Adopted, target: EngineConfig) -> dict[str, object]:
    """What a tuner found, as arguments that differ from what the file says."""
    today = adopted.config
    cache = not today.get("enable_prefix_caching", True)
    found = {"max_num_seqs": 48, "max_num_batched_tokens": 6144, "gpu_memory_utilization": 0.88,
             "enable_prefix_caching": cache, "kv_cache_dtype": "fp8_e5m2", "async_scheduling": False,
             "compilation_config.cudagraph_mode": "FULL", "max_cudagraph_capture_size": 96}  # fmt: skip
    return {name: value for name, value in found.items() if target.get(name) != value}


@pytest.mark.parametrize("name", FILES)
def test_every_tuned_argument_arrives_and_nothing_else_changes(name: str) -> None:
    adopted = adopt_file(FOLDER / name)
    target, result = patched(adopted, settings_of(adopted, adopted.config))
    assert not result.by_hand
    after = adopt_text(result.text, adopted.path, format=adopted.format)
    assert dict(after.config.args) == dict(target.args)
    assert after.config.env == adopted.config.env
    assert (after.model, after.secrets, after.kept) == (adopted.model, adopted.secrets, adopted.kept)
    names = "|".join((*(n.rpartition(".")[2] for n in TUNED), "compilation", "extraArgs")).replace("_", "[-_]?")
    value = re.compile(r"-?[\d.]+|-?fp8\w*|CONC|true|false|mode|PIECEWISE|FULL\w*|pass_config|fuse_\w+|-auto|auto")
    for word in changed_words(adopted.text, result.text):
        assert value.fullmatch(word) or re.search(names, word, re.IGNORECASE), word


@pytest.mark.parametrize("name", FILES)
def test_nothing_to_change_changes_nothing(name: str) -> None:
    adopted = adopt_file(FOLDER / name)
    result = patch(adopted, adopted.config, adopted.config, TABLE)
    assert (result.text, result.changes, result.by_hand, result.unmeasured) == (adopted.text, (), (), ())


def test_what_the_study_never_ran_with_is_named() -> None:
    text = "vllm serve m --tensor-parallel-size 2 --max-num-seqs 64 --port 80 --enable-chunked-prefill\n"
    result = patch(adopt_text(text, Path("run.sh")), EngineConfig.of({"max_num_seqs": 128}), EngineConfig(), TABLE)
    assert result.unmeasured == ("tensor_parallel_size=2",), "neither the port nor what vLLM does anyway"


@pytest.mark.parametrize("name", FILES)
def test_there_and_back_gives_the_file_again(name: str) -> None:
    """A changed value that is changed back leaves no trace."""
    adopted = adopt_file(FOLDER / name)
    numbers = [n for n in ("max_num_seqs", "max_num_batched_tokens", "max_model_len") if adopted.config.get(n)]
    _, there = patched(adopted, dict.fromkeys(numbers, 77777))
    changed = adopt_text(there.text, adopted.path, format=adopted.format)
    back = patch(changed, adopted.config, adopted.config, TABLE)
    if "32k" not in adopted.text and "$((" not in adopted.text:  # a size is written out as a number
        assert back.text == adopted.text


@pytest.mark.parametrize("name", FILES)
def test_an_argument_that_the_tuner_dropped_goes_away(name: str) -> None:
    adopted = adopt_file(FOLDER / name)
    dropped = [n for n in ("max_num_seqs", "gpu_memory_utilization", "block_size") if adopted.config.get(n) is not None]
    target, result = patched(adopted, dict.fromkeys(dropped))
    if name in THROUGH_VARIABLES:  # what else reads the variable is not known
        assert any("max_num_seqs" in sentence for sentence in result.by_hand)
        return
    after = adopt_text(result.text, adopted.path, format=adopted.format)
    assert dict(after.config.args) == dict(target.args)
    assert not result.by_hand


@pytest.mark.parametrize("name", FILES)
def test_variables_are_set_where_the_file_has_a_place_for_them(name: str) -> None:
    adopted = adopt_file(FOLDER / name)
    _, result = patched(adopted, {}, {"VLLM_LOGGING_LEVEL": "WARNING"})
    after = adopt_text(result.text, adopted.path, format=adopted.format)
    said = dict(after.config.env).get("VLLM_LOGGING_LEVEL") == "WARNING"
    assert said or any("VLLM_LOGGING_LEVEL" in text for text in result.by_hand)
    assert after.config.args == adopted.config.args


VALUES = st.fixed_dictionaries(
    {},
    optional={
        "max_num_seqs": st.integers(1, 4096),
        "max_num_batched_tokens": st.integers(64, 65536),
        "gpu_memory_utilization": st.sampled_from([0.5, 0.85, 0.9, 0.955]),
        "enable_prefix_caching": st.booleans(),
        "enable_chunked_prefill": st.booleans(),
        "kv_cache_dtype": st.sampled_from(["auto", "fp8", "fp8_e4m3"]),
        "cudagraph_capture_sizes": st.lists(st.integers(1, 512), min_size=1, max_size=4, unique=True),
        "compilation_config.cudagraph_mode": st.sampled_from(["FULL", "PIECEWISE", "NONE"]),
        "compilation_config.mode": st.integers(0, 3),
        "tensor_parallel_size": st.sampled_from([1, 2, 4, 8]),
        "quantization": st.sampled_from(["fp8", None]),
    },
)


@given(name=st.sampled_from(FILES), new=VALUES)
@settings(max_examples=60, deadline=None)
def test_any_configuration_reads_back_as_wanted_or_is_named(name: str, new: dict[str, object]) -> None:
    adopted = adopt_file(FOLDER / name)
    target, result = patched(adopted, new)
    after = dict(adopt_text(result.text, adopted.path, format=adopted.format).config.args)
    named = " ".join(result.by_hand)
    for argument in new:
        wanted = target.get(argument)
        if argument in named:
            continue
        ordinary = after.get(argument) == wanted
        # What only spells out vLLM's default is not written, and a default that was there may stay.
        assert ordinary or argument in ("enable_chunked_prefill", "kv_cache_dtype", "tensor_parallel_size"), argument


def test_json_values_keep_what_this_vllm_does_not_know() -> None:
    script = 'vllm serve m --compilation-config \'{"mode": 3, "of_another_version": 1}\' --max-num-seqs 8\n'
    adopted = adopt_text(script, Path("a.sh"))
    _, result = patched(adopted, {"compilation_config.mode": 2})
    assert '"of_another_version":1' in result.text
    assert '"mode":2' in result.text


def test_a_default_in_a_variable_is_what_changes() -> None:
    script = 'SEQS=${SEQS:-64}\nvllm serve m --max-num-seqs "$SEQS"\n'
    _, result = patched(adopt_text(script, Path("a.sh")), {"max_num_seqs": 96})
    assert result.text == script.replace("64", "96")


def test_windows_line_ends_stay() -> None:
    text = "tensor-parallel-size: 2\r\nmax-num-seqs: 64\r\n"
    _, result = patched(adopt_text(text, Path("a.yaml")), {"max_num_seqs": 96, "max_num_batched_tokens": 4096})
    assert result.text == text.replace("64", "96").removesuffix("\r\n") + "\r\nmax-num-batched-tokens: 4096\r\n"


def test_a_new_argument_never_comes_between_a_flag_and_its_value() -> None:
    script = (
        'SPEC=\'{"method": "ngram"}\'\nCMD=(\n  vllm serve m\n  --speculative-config "$SPEC"\n'
        '  "${MORE[@]}"\n)\n"${CMD[@]}"\n'
    )
    adopted = adopt_text(script, Path("a.sh"))
    _, result = patched(adopted, {"max_num_seqs": 48})
    assert not result.by_hand
    assert '--speculative-config "$SPEC"\n  "${MORE[@]}"\n  --max-num-seqs 48\n' in result.text


def test_a_script_and_a_list_of_items_bring_one_command_line_together() -> None:
    text = (
        "services:\n  a:\n    image: vllm/vllm-openai:v0.31.0\n    entrypoint:\n      - bash\n      - -c\n      - |\n"
        '        exec vllm serve --max-num-seqs 8 "$$@" --block-size 16\n      - --\n    command:\n      - --model\n'
        "      - m\n"
    )
    adopted = adopt_text(text, Path("compose.yaml"))
    target, result = patched(adopted, {"max_num_seqs": 48, "block_size": None, "max_num_batched_tokens": 4096})
    assert not result.by_hand
    after = adopt_text(result.text, adopted.path)
    assert dict(after.config.args) == dict(target.args)
    assert '      - m\n      - --max-num-batched-tokens\n      - "4096"\n' in result.text


def test_a_chart_without_a_section_for_vllm_gets_one() -> None:
    text = "servingEngineSpec:\n  modelSpec:\n  - name: a\n    modelURL: m\n    requestGPU: 1\nrouterSpec: {}\n"
    adopted = adopt_text(text, Path("values.yaml"))
    _, result = patched(adopted, {"max_num_seqs": 48, "enable_prefix_caching": False, "kv_cache_dtype": "fp8"})
    after = dict(adopt_text(result.text, adopted.path).config.args)
    assert (after["max_num_seqs"], after["enable_prefix_caching"], after["kv_cache_dtype"]) == (48, False, "fp8")
    assert not result.by_hand


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "compose.yaml",
            "services:\n  a:\n    image: vllm/vllm-openai:v0.32.0\n    command: --model m --max-num-seqs ${SEQS:-64}\n",
            "--model m --max-num-seqs ${SEQS:-48} --kv-cache-dtype fp8\n",
        ),
        (
            "pod.yaml",
            "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai:v0.32.0\n"
            "    env: [{name: SEQS, value: '64'}]\n    command: [sh, -c, 'vllm serve m --max-num-seqs $(SEQS)']\n",
            "value: '48'}]\n    command: [sh, -c, 'vllm serve m --max-num-seqs $(SEQS) --kv-cache-dtype fp8']\n",
        ),
        (
            "pod.yaml",
            "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai:v0.32.0\n"
            "    env: [{name: SEQS, value: '64'}]\n"
            '    command: [sh, -c, "vllm serve m --max-num-seqs $(SEQS)"]\n',
            "value: '48'}]\n    command: [sh, -c, \"vllm serve m --max-num-seqs $(SEQS) --kv-cache-dtype fp8\"]\n",
        ),
        (
            "pod.yaml",
            "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai:v0.32.0\n"
            "    args:\n    - --model\n    - m\n    - --max-num-seqs\n    - $(SEQS)\n",
            '    - --max-num-seqs\n    - "48"\n    - --kv-cache-dtype\n    - fp8\n',
        ),
        (
            "compose.yaml",
            "services:\n  a:\n    image: vllm/vllm-openai:v0.32.0\n"
            "    command: [--model, m, --max-num-seqs, '${SEQS-}']\n",
            '    command: [--model, m, --max-num-seqs, "48", "--kv-cache-dtype", "fp8"]\n',
        ),
        (
            "a.service",
            "[Service]\nEnvironment=SEQS=64\nExecStart=/bin/vllm serve m --max-num-seqs ${SEQS}\n",
            "Environment=SEQS=48\nExecStart=/bin/vllm serve m --max-num-seqs ${SEQS} --kv-cache-dtype fp8\n",
        ),
    ],
)
def test_a_value_that_comes_by_reference_is_changed_where_it_stands(name: str, text: str, expected: str) -> None:
    adopted = adopt_text(text, Path(name))
    target, result = patched(adopted, {"max_num_seqs": 48, "kv_cache_dtype": "fp8"})
    assert result.text.endswith(expected)
    assert dict(adopt_text(result.text, Path(name)).config.args) == dict(target.args)
