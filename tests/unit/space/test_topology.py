"""Which engines a trial of several consists of."""

from __future__ import annotations

import pytest

from autotune.errors import SpecError
from autotune.space.catalogue import SpaceContext, load_space
from autotune.space.config import EngineConfig
from autotune.space.topology import CONNECTOR, role_config, split_plan, trial_name
from autotune.spec.study import SpaceSpec


def names(config: EngineConfig, slots: int, **options: object) -> list[tuple[str, int]]:
    plan = split_plan(config, slots, **options)  # type: ignore[arg-type]
    assert plan.problem == ""
    return [(member.name, member.gpus) for member in plan.members]


def test_without_prefill_engines_all_are_alike() -> None:
    config = EngineConfig.of({"max_num_seqs": 8, "prefill.max_num_seqs": 2, "decode.max_num_seqs": 4})
    plan = split_plan(config, 3)
    assert [member.name for member in plan.members] == ["replica-0", "replica-1", "replica-2"]
    assert {member.config for member in plan.members} == {EngineConfig.of({"max_num_seqs": 8})}
    assert names(EngineConfig.of({"tensor_parallel_size": 2}), 5) == [("replica-0", 2), ("replica-1", 2)]
    assert split_plan(EngineConfig.of({"tensor_parallel_size": 2}), 5).idle == 1


def test_decode_engines_take_the_gpus_that_are_left() -> None:
    config = EngineConfig.of({"topology.prefill": 1, "prefill.tensor_parallel_size": 2})
    assert names(config, 4) == [("prefill-0", 2), ("decode-0", 1), ("decode-1", 1)]
    fewer = config.merged({"topology.decode": 1})
    assert names(fewer, 4) == [("prefill-0", 2), ("decode-0", 1)]
    assert split_plan(fewer, 4).idle == 1
    # On the CPU engines share the cores: each takes one place, whatever its layout.
    assert names(config, 3, on_cpu=True) == [("prefill-0", 1), ("decode-0", 1), ("decode-1", 1)]


@pytest.mark.parametrize(
    ("args", "slots", "said"),
    [
        ({"topology.prefill": 2}, 2, "2 prefill engines of 1 and 1 decode engines of 1 do not fit the 2 GPUs"),
        ({"topology.prefill": 1, "topology.decode": 4}, 4, "1 prefill engines of 1 and 4 decode engines of 1"),
        ({"tensor_parallel_size": 4}, 2, "0 prefill engines of 4 and 1 replica engines of 4 do not fit the 2 GPUs"),
        ({"topology.prefill": -1}, 2, "topology.prefill is -1"),
        ({"topology.prefill": 1, "router.threshold": "x"}, 2, "router.threshold is 'x'"),
    ],
)
def test_what_does_not_fit_is_said(args: dict[str, object], slots: int, said: str) -> None:
    plan = split_plan(EngineConfig.of(args), slots)
    assert plan.problem.startswith(said)
    assert plan.members == ()


def test_a_role_takes_what_is_said_of_it_alone() -> None:
    config = EngineConfig.of(
        {"max_num_seqs": 8, "decode.max_num_seqs": 64, "prefill.compilation_config.mode": 0, "topology.prefill": 1},
        {"NCCL_NVLS_ENABLE": "0"},
    )
    assert role_config(config, "decode") == EngineConfig.of({"max_num_seqs": 64}, {"NCCL_NVLS_ENABLE": "0"})
    assert role_config(config, "prefill") == EngineConfig.of(
        {"max_num_seqs": 8, "compilation_config": {"mode": 0}}, {"NCCL_NVLS_ENABLE": "0"}
    )
    assert trial_name(config, "decode", "max_num_seqs") == "decode.max_num_seqs"
    assert trial_name(config, "prefill", "max_num_seqs") == "max_num_seqs"


def test_engines_that_hand_on_their_cache_get_a_connector_and_may_change_it() -> None:
    config = EngineConfig.of({"topology.prefill": 1, "prefill.kv_transfer_config.kv_buffer_device": "cpu"})
    first, second = split_plan(config, 2, transfer="nixl").members
    assert dict(first.config.args) == {**CONNECTOR["prefill"], "kv_transfer_config.kv_buffer_device": "cpu"}
    assert dict(second.config.args) == CONNECTOR["decode"]
    replicas = split_plan(EngineConfig(), 2, transfer="nixl").members
    assert {member.config for member in replicas} == {EngineConfig()}, "replicas hand nothing on"


SPACE = {
    "name": "ratios",
    "parameters": {
        "topology.prefill": {"choice": [0, 1, 2]},
        "router.threshold": {"ladder": [128, 512], "when": "topology.prefill > 0"},
        "decode.max_num_seqs": {"ladder": [8, 64], "when": "topology.prefill > 0"},
        "max_num_batched_tokens": {"ladder": [512, 2048]},
    },
}


def test_ratio_and_settings_of_a_role_are_searched_together() -> None:
    space = load_space(SpaceSpec.model_validate(SPACE), SpaceContext(gpus=4, split=True))
    point = {"topology.prefill": 1, "router.threshold": 512, "decode.max_num_seqs": 64, "max_num_batched_tokens": 512}
    config = space.config(point, EngineConfig())
    assert [(m.name, m.config.get("max_num_seqs")) for m in split_plan(config, 3).members] == [
        ("prefill-0", None), ("decode-0", 64), ("decode-1", 64),
    ]  # fmt: skip
    replicas = space.config({**point, "topology.prefill": 0}, EngineConfig())
    assert replicas == EngineConfig.of({"topology.prefill": 0, "max_num_batched_tokens": 512})
    # A baseline that says nothing of it is the replicas.
    assert space.point_of(EngineConfig.of({"max_num_batched_tokens": 512})) == {
        "topology.prefill": 0,
        "max_num_batched_tokens": 512,
    }


@pytest.mark.parametrize(
    ("name", "split", "said"),
    [
        ("prefill.max_num_seqs", False, "is for several engines"),
        ("topology.ratio", True, "is no setting of the topology"),
        ("prefill.quantization", True, "must be the same for all engines"),
        ("prefill.max_num_sqs", True, "vLLM has no argument"),
    ],
)
def test_names_without_a_meaning_are_refused(name: str, split: bool, said: str) -> None:
    spec = SpaceSpec.model_validate({"name": "x", "parameters": {name: {"ladder": [1, 2]}}})
    with pytest.raises(SpecError, match=said):
        load_space(spec, SpaceContext(gpus=2, split=split))
