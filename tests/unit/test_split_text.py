"""The commands of a split trial can be started by hand as they are printed."""

from __future__ import annotations

import pytest

from autotune.cli.split_text import split_commands
from autotune.space.config import EngineConfig
from autotune.spec.study import StudySpec


@pytest.mark.parametrize(("transfer", "channels"), [("nixl", ["5600", "5601", "5602"]), ("none", [])])
def test_engines_on_one_host_share_no_port(transfer: str, channels: list[str]) -> None:
    spec = StudySpec.model_validate(
        {"name": "split", "model": "llama-3.1-8b", "engine": {"kind": "simulated"}, "hardware": {"gpus": 3},
         "topology": {"kind": "disaggregated", "transfer": transfer}}
    )  # fmt: skip
    *engines, (name, router) = split_commands(spec, EngineConfig.of({"topology.prefill": 1}), 3)
    assert [one for one, _ in engines] == ["prefill-0", "decode-0", "decode-1"] and name == "router"
    words = [dict(word.split("=", 1) for word in command.split() if "=" in word) for _, command in engines]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in words] == ["0", "1", "2"]
    assert [one["VLLM_NIXL_SIDE_CHANNEL_PORT"] for one in words if "VLLM_NIXL_SIDE_CHANNEL_PORT" in one] == channels
    assert [command.rsplit("--port ", 1)[1] for _, command in engines] == ["8001", "8002", "8003"]
    assert router.endswith("--port 8000") and all(f"127.0.0.1:{port}" in router for port in (8001, 8002, 8003))
