"""`autotune export`, `adopt` and `lint` as commands."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from autotune.cli.adopt import adopt
from autotune.cli.export import export
from autotune.cli.lint import lint
from autotune.errors import SpecError
from autotune.spec.load import load_study
from autotune.study import Study

FOLDER = Path(__file__).parents[2] / "data" / "launch_configs"
app = typer.Typer()
for command in (adopt, export, lint):
    app.command()(command)


def run(*words: object) -> Result:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_export_prints_one_file(study: Study) -> None:
    result = run("export", study.path)
    assert result.exit_code == 0
    assert "max-num-seqs: 384" in result.stdout
    assert "wrote" not in result.stdout


@pytest.mark.parametrize("study", ["simulated"], indirect=True)
def test_a_simulated_study_warns(study: Study) -> None:
    result = run("export", study.path, "--format", "shell")
    assert "never measured on a GPU" in result.stderr
    assert "SIMULATED" in result.stdout


def test_a_file_or_a_folder(study: Study, tmp_path: Path) -> None:
    run("export", study.path, "--out", tmp_path / "serve.yaml")
    assert "384" in (tmp_path / "serve.yaml").read_text()
    run("export", study.path, "-f", "kubernetes", "--with", "operations", "--out", tmp_path / "deploy")
    names = {path.name for path in (tmp_path / "deploy").iterdir()}
    assert {
        "chat-deployment.yaml",
        "chat-alerts.yaml",
        "chat-grafana.json",
        "chat-envoy.yaml",
        "chat-keda.yaml",
    } <= names


def test_patch_changes_the_adopted_file_and_writes_its_evidence_beside(study: Study, tmp_path: Path) -> None:
    mine = tmp_path / "deployment.yaml"
    before = (FOLDER / "16_gemma3_27b_deployment.yaml").read_text()
    mine.write_text(before)
    mine.chmod(0o640)
    result = run("export", study.path, "-f", "patch", "--into", mine, "--out", mine)
    assert "max_num_seqs: 4 → 384 (line 27)" in result.stderr
    assert mine.read_text() == before.replace("--max-num-seqs=4", "--max-num-seqs=384")
    assert stat.S_IMODE(mine.stat().st_mode) == 0o640
    assert "1.27" in (tmp_path / "deployment.yaml.evidence.txt").read_text()


@pytest.mark.parametrize(
    "words",
    [("-f", "kubernets"), ("-f", "patch"), ("--into", "x.yaml"), ("--with", "coffee"), ("--pick", "none")],
)
def test_wrong_options_say_what_is_legal(study: Study, words: tuple[str, ...]) -> None:
    with pytest.raises(SpecError) as caught:
        run("export", study.path, *words)
    assert caught.value.hint


def test_adopt_prints_a_section_and_writes_a_study(tmp_path: Path) -> None:
    source = FOLDER / "35_minimax_docker_run.sh"
    printed = run("adopt", source)
    assert "max_num_seqs: 64" in printed.stdout
    assert "swap-space" in printed.stderr
    target = tmp_path / "study.yaml"
    run("adopt", source, "--out", target)
    spec = load_study(target)
    assert (spec.model, spec.hardware.gpus) == ("MiniMaxAI/MiniMax-M2.5", 4)
    assert spec.baseline.args["tensor_parallel_size"] == 4
    assert "CUDA_VISIBLE_DEVICES" not in spec.baseline.env
    with pytest.raises(SpecError, match="exists already"):
        run("adopt", source, "--out", target)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("[0-9]*")), ids=lambda path: path.name)
def test_every_adopted_file_becomes_a_valid_study(path: Path, tmp_path: Path) -> None:
    run("adopt", path, "--out", tmp_path / "study.yaml")
    load_study(tmp_path / "study.yaml")


def test_adopt_takes_variables_that_the_file_leaves_open() -> None:
    body = json.loads(run("adopt", FOLDER / "22_gptoss_h100.sh", "--var", "TP=4", "--var", "CONC=64", "--json").stdout)
    assert (body["args"]["tensor_parallel_size"], body["args"]["max_num_seqs"]) == (4, 64)
    with pytest.raises(SpecError, match="NAME=VALUE"):
        run("adopt", FOLDER / "22_gptoss_h100.sh", "--var", "TP")


def test_lint_exits_with_one_on_an_error_only(tmp_path: Path) -> None:
    assert run("lint", FOLDER / "16_gemma3_27b_deployment.yaml").exit_code == 1
    assert run("lint", FOLDER / "33_qwen3_14b.sh").exit_code == 0
    body = json.loads(run("lint", FOLDER / "28_kimi_k3_slurm.yaml", "--json").stdout)
    found = {row["rule"]: row for row in body["findings"]}
    assert found["launch_blocking"]["severity"] == "error"
    assert found["launch_blocking"]["line"] == 13
    assert all(row["source"] for row in body["findings"])


def test_a_secret_in_plain_text_is_an_error_and_is_not_shown(tmp_path: Path) -> None:
    script = tmp_path / "start.sh"
    script.write_text("export HF_TOKEN=hf_verysecretverysecret\nvllm serve m --api-key sk-alsoverysecret123\n")
    for words in (("lint", script), ("lint", script, "--json"), ("adopt", script), ("adopt", script, "--json")):
        result = run(*words)
        assert "verysecret" not in result.output
    assert run("lint", script).exit_code == 1


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read_is_an_error_of_the_user(tmp_path: Path, name: str) -> None:
    for command in ("adopt", "lint"):
        with pytest.raises(SpecError, match="cannot be read"):
            run(command, tmp_path / name)
