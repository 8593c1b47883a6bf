"""`autotune spaces`: the list, one space, and both for machines."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.cli.spaces import spaces


def test_the_list_names_what_is_shipped_and_what_is_mine(
    write_space: Callable[[str, str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_space("mine", "description: my cards\nparameters:\n  max_num_seqs: {ladder: [1, 2]}\n")
    spaces(as_json=True)
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["mine"] == {"name": "mine", "path": str(path), "shipped": False, "description": "my cards"}
    assert rows["h100-dense"]["shipped"]
    spaces()
    assert "my cards" in capsys.readouterr().out


def test_one_space_shows_its_settings_for_the_gpus_at_hand(capsys: pytest.CaptureFixture[str]) -> None:
    spaces("h100-moe-multi-gpu", gpus=4, experts=128, as_json=True)
    shown = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in shown["parameters"]}
    assert "tp2-dp2-ep" in rows["layout"]["values"]
    assert rows["enable_eplb"]["when"] == "enable_expert_parallel"
    spaces("cpu", gpus=0)
    text = capsys.readouterr().out
    assert "must hold: max_num_batched_tokens >= max_num_seqs" in text
    assert "2,688 points at most" in text
