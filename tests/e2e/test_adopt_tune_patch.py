"""Adopt what runs today, tune it on the simulator, patch the file: with the real command line, for every format."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner, Result

from autotune.adopt.registry import SOURCES, adopt_file
from autotune.cli.commands import app

pytestmark = pytest.mark.slow
FILES = Path(__file__).parents[1] / "data" / "launch_configs"
ONE_OF_EACH = {
    "shell": "24_deepseek_v4_h200.sh",
    "vllm-yaml": "11_deepseek_r1_a4x.yaml",
    "compose": "29_agents_a1_compose.yml",
    "kubernetes": "13_llama31_405b_lws.yaml",
    "kserve": "more_inference_service.yaml",
    "llm-d": "more_llm_d_values.yaml",
    "production-stack": "20_production_stack_values.yaml",
    "helm": "08_deepseek_r1_values.yaml",
    "systemd": "more_vllm.service",
}
TODAY = "vllm serve llama-3.1-8b --max-num-seqs 32 --max-num-batched-tokens 2048 --gpu-memory-utilization 0.9\n"


def autotune(*words: object) -> subprocess.CompletedProcess[str]:
    """As people start it."""
    command = [sys.executable, "-m", "autotune", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def export(study: Path, *words: object) -> Result:
    """In this process: what a start of Python costs has nothing to do with files."""
    return CliRunner().invoke(app, ["export", str(study), "--pick", "best-throughput", *map(str, words)])


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study whose baseline was adopted from a script, and that has been run on the simulator."""
    folder = tmp_path_factory.mktemp("adopt")
    (folder / "start.sh").write_text(TODAY)
    study = folder / "chat.yaml"
    done = autotune("adopt", folder / "start.sh", "--out", study)
    assert done.returncode == 0, done.stderr
    body = YAML(typ="safe").load(study.read_text())
    assert body["baseline"]["args"]["max_num_seqs"] == 32
    body["name"] = "chat"
    body["engine"] = {"kind": "simulated", "simulate": {"clock": "virtual"}}
    body["load"] |= {"levels": [64], "warmup": {"requests": 8, "max_duration": "2s"}, "window": {"duration": "5s"}}
    body |= {"quality": {"enabled": False}, "search": {"trials": 3}, "confirm": {"rounds": 0}}
    YAML().dump(body, study)
    done = autotune("run", study, "--plain")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return study


def test_every_source_has_its_file() -> None:
    assert ONE_OF_EACH.keys() == SOURCES.keys()


@pytest.mark.parametrize("name", sorted(ONE_OF_EACH))
def test_the_file_says_what_the_study_found(tuned: Path, name: str, tmp_path: Path) -> None:
    mine = tmp_path / ONE_OF_EACH[name]
    shutil.copy(FILES / ONE_OF_EACH[name], mine)
    before = adopt_file(mine)
    assert before.format == name
    text = before.text
    done = export(tuned, "-f", "patch", "--into", mine, "--out", mine)
    assert done.exit_code == 0, done.stderr
    assert "by hand" not in done.stderr
    assert "never measured on a GPU" in done.stderr
    after = adopt_file(mine)
    exported = YAML(typ="safe").load(export(tuned, "-f", "json").stdout)["args"]
    assert exported
    for argument, value in exported.items():
        assert after.config.get(argument.replace("-", "_")) == value, argument
    tunable = {argument.replace("-", "_") for argument in exported}
    changed = {item.name for item in after.config.changes_from(before.config)}
    assert changed <= tunable
    assert (after.model, after.config.env, after.kept) == (before.model, before.config.env, before.kept)
    # A second time there is nothing left to change.
    again = export(tuned, "-f", "patch", "--into", mine)
    assert again.stdout == mine.read_text()
    assert mine.read_text() != text
    assert "SIMULATED" in (tmp_path / f"{mine.name}.evidence.txt").read_text()
