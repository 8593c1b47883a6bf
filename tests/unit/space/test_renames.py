"""Renames against what the releases 0.26 to 0.33 really have."""

import json
from pathlib import Path

import pytest

from autotune.space.catalogue import SpaceContext, list_spaces, load_space
from autotune.space.config import EngineConfig
from autotune.space.renames import argument_renames, missing_in, parse_version, translate, variable_renames

DATA = json.loads((Path(__file__).parents[2] / "data" / "vllm_argument_names.json").read_text(encoding="utf-8"))


def history(group: str) -> dict[str, frozenset[str]]:
    names: frozenset[str] = frozenset()
    found: dict[str, frozenset[str]] = {}
    for release in DATA[group]:
        names = (names | frozenset(release["new"])) - frozenset(release["gone"])
        found[release["version"]] = names
    return found


ARGUMENTS, VARIABLES = history("releases"), history("variables")


@pytest.mark.parametrize("version", ARGUMENTS)
def test_the_table_agrees_with_the_source_of_each_release(version: str) -> None:
    target = parse_version(version)
    wrong = [
        name for name, rule in argument_renames().items() if rule.exists_in(target) != (name in ARGUMENTS[version])
    ]
    wrong += [
        name for name, rule in variable_renames().items() if rule.exists_in(target) != (name in VARIABLES[version])
    ]
    assert wrong == []


@pytest.mark.parametrize("version", ARGUMENTS)
def test_new_names_exist_where_they_are_given(version: str) -> None:
    every = EngineConfig.of(dict.fromkeys(argument_renames(), 1), dict.fromkeys(variable_renames(), "1"))
    config, _ = translate(every, version)
    assert [name for name, _ in config.args if name not in ARGUMENTS[version]] == []
    assert [name for name, _ in config.env if name not in VARIABLES[version]] == []


@pytest.mark.parametrize("version", ARGUMENTS)
@pytest.mark.parametrize("space", [item.name for item in list_spaces() if item.shipped])
def test_every_shipped_space_works_with_every_release(space: str, version: str) -> None:
    model = {"num_experts": 128, "num_attention_heads": 64}
    loaded = load_space(space, SpaceContext(gpus=8, model=model, longest_request=2048))
    names = [p.name for p in loaded.parameters if not p.env and p.kind != "layout"]
    translated, notes = translate(EngineConfig.of(dict.fromkeys(names, 1)), version)
    assert notes == ()
    assert [name for name, _ in translated.args if name not in ARGUMENTS[version]] == []


def test_an_old_deployment_is_brought_up_to_date() -> None:
    old = EngineConfig.of(
        {"swap_space": 4, "cuda_graph_sizes": [1, 2], "disable_log_requests": True, "max_num_seqs": 8,
         "compilation_config": {"level": 3}},
        {"VLLM_ATTENTION_BACKEND": "FLASHINFER", "VLLM_USE_V1": "1", "OMP_NUM_THREADS": "2"},
    )  # fmt: skip
    new, notes = translate(old, "0.32.0")
    assert dict(new.args) == {
        "attention_backend": "FLASHINFER", "compilation_config.mode": 3, "cudagraph_capture_sizes": (1, 2),
        "enable_log_requests": False, "max_num_seqs": 8,
    }  # fmt: skip
    assert dict(new.env) == {"OMP_NUM_THREADS": "2"}
    assert sum("left out" in note for note in notes) == 2


def test_what_an_older_release_lacks_is_left_out_with_its_version() -> None:
    config = EngineConfig.of({"max_num_active_seqs": 8})
    assert translate(config, "0.32.0") == (config, ())
    left, notes = translate(config, "0.28.1")
    assert left == EngineConfig()
    assert notes == ("max_num_active_seqs needs vLLM 0.31; 0.28.1 runs without it",)
    assert missing_in(["max_num_active_seqs", "max_num_seqs"], "0.28.1") == ("max_num_active_seqs",)


def test_a_nested_value_follows_its_argument() -> None:
    old = EngineConfig.of({"override_pooler_config": {"pooling_type": "CLS"}})
    assert translate(old, "0.32.0")[0] == EngineConfig.of({"pooler_config": {"pooling_type": "CLS"}})


def test_the_newer_name_wins() -> None:
    both = EngineConfig.of({"cuda_graph_sizes": [1], "cudagraph_capture_sizes": [2]})
    assert translate(both, "0.32.0")[0].get("cudagraph_capture_sizes") == (2,)


@pytest.mark.parametrize(("text", "version"), [("0.32.1rc1+cu129", (0, 32)), ("v0.26.0", (0, 26)), ("dev", (0, 33))])
def test_versions_are_read(text: str, version: tuple[int, int]) -> None:
    assert parse_version(text) == version
