"""Every export format passes the same cases, and every file is read back by the reader of its format."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.adopt.registry import SOURCES, adopt_text
from autotune.export.registry import EXPORTERS
from autotune.export.values import Exporter
from autotune.testing.exporter_contract import CASES, example


@pytest.mark.parametrize("name", sorted(EXPORTERS))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_contract(case: Callable[[Exporter], None], name: str) -> None:
    case(EXPORTERS[name])


@pytest.mark.parametrize("name", sorted(EXPORTERS.keys() & SOURCES.keys()))
def test_a_file_reads_back_as_what_was_exported(name: str) -> None:
    wanted = example()
    file = EXPORTERS[name].render(wanted)[0]
    adopted = adopt_text(file.text, Path(file.path))
    assert adopted.format == name
    assert adopted.model == wanted.model
    for argument, value in wanted.config.args:
        assert adopted.config.get(argument) == value, argument
    added = {argument for argument, _ in adopted.config.args} - {argument for argument, _ in wanted.config.args}
    # What a deployment must say beside: where it listens, and sizes of one.
    assert added <= {"model", "host", "port", "data_parallel_size", "served_model_name"}
    if name != "vllm-yaml":  # vLLM reads no variables from its file
        env = dict(adopted.config.env)
        # A unit reads its secrets from a file that is not here.
        secret = {"HF_TOKEN"} if name == "systemd" else set()
        assert {k: env.get(k) for k, _ in wanted.config.env if k not in secret} == {
            k: v for k, v in wanted.config.env if k not in secret
        }
    assert not adopted.unknown
    assert not adopted.unread


def test_formats_that_are_promised_are_there() -> None:
    assert set(EXPORTERS) == {
        "vllm-yaml", "shell", "compose", "kubernetes", "kserve", "llm-d", "production-stack", "systemd", "env", "json",
    }  # fmt: skip


def test_json_is_json() -> None:
    body = json.loads(EXPORTERS["json"].render(example())[0].text)
    assert body["args"]["max-num-seqs"] == 384
    assert body["env"]["HF_TOKEN"] == "${HF_TOKEN}"
    assert body["evidence"]["measures"][0]["low"] == 5100.0
