"""Finding and reading spaces: by name from anywhere, with errors that name file, line and key."""

from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.errors import SpecError
from autotune.space.catalogue import SpaceContext, find_space, list_spaces, load_space, shipped_folder
from autotune.space.space import SearchSpace
from autotune.spec.study import ParameterSpec, SpaceSpec

WriteSpace = Callable[[str, str], Path]
SHIPPED = [item.name for item in list_spaces() if item.shipped]
DENSE = {"num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 32768}
MOE = {**DENSE, "num_experts": 128, "moe_intermediate_size": 1536}


def loaded(name: str, gpus: int = 8) -> SearchSpace:
    return load_space(name, SpaceContext(gpus=gpus, model=MOE if "moe" in name else DENSE, longest_request=4096))


def test_the_shipped_spaces_are_there() -> None:
    assert {"h100-dense", "h100-moe", "h100-moe-multi-gpu", "cpu"} <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_space_loads_and_explains_itself(name: str) -> None:
    space = loaded(name, 0 if name == "cpu" else 8)
    assert space.parameters
    assert space.requires
    assert space.description
    for parameter in space.parameters:
        assert parameter.description, parameter.name
        assert 2 <= len(parameter.values) <= 64
        if parameter.kind == "ladder":
            assert len(parameter.values) <= 16


def test_the_gpu_spaces_cover_the_settings_that_matter() -> None:
    wanted = {
        "gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "layout", "quantization", "kv_cache_dtype",
        "max_cudagraph_capture_size", "cudagraph_capture_sizes", "compilation_config.cudagraph_mode",
        "enable_prefix_caching", "enable_chunked_prefill", "long_prefill_token_threshold", "scheduling_policy",
        "block_size", "async_scheduling", "max_model_len",
    }  # fmt: skip
    for name in SHIPPED:
        if name.startswith("h100"):
            assert wanted <= set(loaded(name).by_name), name


def test_what_cannot_be_tuned_here_is_left_out() -> None:
    quantised = load_space("h100-dense", SpaceContext(gpus=1, model={**DENSE, "quantization": "awq"}))
    assert {"layout", "quantization", "max_model_len"} & set(quantised.by_name) == set()


def test_a_users_space_hides_the_shipped_one(write_space: WriteSpace) -> None:
    path = write_space("cpu", "description: mine\nparameters:\n  max_num_seqs: {ladder: [1, 2]}\n")
    assert find_space("cpu") == path
    assert load_space("cpu", SpaceContext(gpus=0)).size == 2
    mine = next(item for item in list_spaces() if item.name == "cpu")
    assert (mine.path, mine.shipped, mine.description) == (path, False, "mine")


def test_the_nearer_folder_wins(write_space: WriteSpace, tmp_path: Path) -> None:
    write_space("mine", "parameters:\n  max_num_seqs: {ladder: [1, 2]}\n")
    (tmp_path / "search_spaces").mkdir()
    here = tmp_path / "search_spaces" / "mine.yaml"
    here.write_text("parameters:\n  max_num_seqs: {ladder: [1, 2, 3]}\n", encoding="utf-8")
    assert find_space("mine").resolve() == here


def test_shipped_spaces_are_found_from_any_folder(write_space: WriteSpace) -> None:
    assert find_space("h100-dense") == shipped_folder() / "h100-dense.yaml"


def test_a_path_beside_the_study(write_space: WriteSpace, tmp_path: Path) -> None:
    path = write_space("special", "parameters:\n  max_num_seqs: {ladder: [1, 2]}\n")
    assert find_space("special.yaml", beside=path.parent) == path
    with pytest.raises(SpecError, match="no search space at"):
        find_space("special.yaml", beside=tmp_path)


def test_an_unknown_name_gets_the_nearest_one(write_space: WriteSpace) -> None:
    with pytest.raises(SpecError, match="no search space named") as raised:
        find_space("h100-dens")
    assert "Did you mean h100-dense?" in (raised.value.hint or "")


def test_a_broken_file_does_not_hide_the_others(write_space: WriteSpace) -> None:
    write_space("broken", "a: [")
    found = {item.name: item.description for item in list_spaces()}
    assert "cannot be read" in found["broken"]
    assert "cpu" in found


MISTAKES = [
    ("max_num_seq: {ladder: [1, 2]}", 2, "parameters.max_num_seq", "Did you mean max_num_seqs?"),
    ("max_num_seqs: {ladder: [2, 1]}", 2, "parameters.max_num_seqs.ladder", "must rise"),
    ("max_num_seqs: {ladder: [1]}", 2, "parameters.max_num_seqs.ladder", "2 to 16"),
    (f"max_num_seqs: {{ladder: {list(range(1, 18))}}}", 2, "parameters.max_num_seqs.ladder", "2 to 16"),
    ("max_num_seqs: {choice: [1]}", 2, "parameters.max_num_seqs.choice", "`fixed:`"),
    ("max_num_seqs: {choice: [1, 1]}", 2, "parameters.max_num_seqs.choice", "once"),
    ("max_num_seqs: {description: x}", 2, "parameters.max_num_seqs", "exactly one of"),
    ("max_num_seqs: {ladder: [1, 2], switch: true}", 2, "parameters.max_num_seqs", "exactly one of"),
    ("max_num_seqs:\n    ladder: [1, 2]\n    when: gpu > 1", 4, "parameters.max_num_seqs.when", "Did you mean `gpus`?"),
    ("max_num_seqs: {ladder: [1, 2]}\nrequire:\n  - max_num_seqs >", 4, "require[0]", "^"),
    ("max_num_seqs: {ladder: [1, 2]}\nfixed:\n  max_num_see: 3", 4, "fixed.max_num_see", "Did you mean max_num_seqs?"),
    ("max_num_seqs: {ladder: [1, 2]}\nderive:\n  block_size: 2 *", 4, "derive.block_size", "^"),
    ("layout: {layout: {tensor_parallel: [16]}}", 2, "parameters.layout.layout", "Allow other sizes"),
    ("max_num_seqs: {laddr: [1, 2]}", 2, "parameters.max_num_seqs.laddr", "ladder"),
]


@pytest.mark.parametrize(("body", "line", "key", "hint"), MISTAKES, ids=[case[0][:40] for case in MISTAKES])
def test_a_mistake_names_its_line_its_key_and_what_to_do(
    write_space: WriteSpace, body: str, line: int, key: str, hint: str
) -> None:
    path = write_space("bad", f"parameters:\n  {body}\n")
    with pytest.raises(SpecError) as raised:
        load_space("bad", SpaceContext(gpus=2))
    error = raised.value
    assert (error.file, error.line, error.key) == (str(path), line, key)
    assert hint in (error.hint or "") + error.message


def test_conditions_in_a_circle_are_refused(write_space: WriteSpace) -> None:
    write_space(
        "circle",
        "parameters:\n  max_num_seqs: {ladder: [1, 2], when: block_size > 1}\n"
        "  block_size: {ladder: [16, 32], when: max_num_seqs > 1}\n",
    )
    with pytest.raises(SpecError, match="go in a circle"):
        load_space("circle", SpaceContext(gpus=1))


def test_a_space_that_stands_in_the_study() -> None:
    spec = SpaceSpec(name="mine", parameters={"max_num_seqs": ParameterSpec(ladder=[1, 2, 4])})
    assert load_space(spec, SpaceContext()).size == 3
    with pytest.raises(SpecError) as raised:
        load_space(SpaceSpec(parameters={"max_num_see": ParameterSpec(switch=True)}), SpaceContext())
    assert raised.value.key == "space.parameters.max_num_see"
