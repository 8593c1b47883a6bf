"""Re-tuning by the real command line with the real driver on the simulated engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from autotune.cli.app import app

STUDY = """\
name: short
model: llama-3.1-8b
engine: {kind: simulated, simulate: {card: h100, speed: 10, startup: 0, noise: 1%}}
hardware: {gpus: 1}
space:
  parameters:
    max_num_seqs: {ladder: [32, 64]}
baseline: {args: {max_num_seqs: 4}}
load:
  input_tokens: 256
  output_tokens: 64
  levels: [16]
  warmup: {requests: 16, max_duration: 4s, tolerance: 20%}
  window: {duration: 8s, requests: 60}
objectives: [{metric: output_throughput}]
quality: {enabled: false}
search: {trials: 2, experts: false, sentinel_every: 0}
confirm: {rounds: 2, finalists: 1, minimise: false}
retune:
  budget: {configurations: 2}
  metrics_file: retune.prom
  hooks:
    after: [{command: [sh, hook.sh]}]
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOTUNE_STATE", str(tmp_path / "state"))
    path = tmp_path / "short.yaml"
    path.write_text(STUDY)
    (tmp_path / "hook.sh").write_text(
        'echo "$AUTOTUNE_CHANGE $AUTOTUNE_VERSION" >> called\nexit $(cat code 2>/dev/null)\n'
    )
    return path


def call(*args: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, [str(arg) for arg in args])
    assert done.exit_code == code, f"{args}: {done.output}\n{done.exception!r}"
    return done.stdout


def deployed(folder: Path) -> str:
    (file,) = (folder / "deploy/current").iterdir()
    return file.read_text()


@pytest.mark.slow
def test_a_study_is_adopted_watched_tuned_again_promoted_and_rolled_back(study: Path) -> None:
    folder = study.parent
    call("run", study, "--plain", "--set", "search.trials=1")  # the baseline alone: nothing better is known yet

    first = json.loads(call("retune", study, "--json"))
    assert first["verdict"] == "nothing"
    assert "first canary" in "".join(first["reasons"])
    assert "max-num-seqs: 4" in deployed(folder)
    assert not (folder / "called").exists()

    edited = ("--set", "load.input_tokens=300")
    said = json.loads(call("retune", study, "--json", "--dry-run", *edited))
    assert said["verdict"] == "dry run" and "arguments was" in "".join(said["reasons"])
    assert not (folder / "called").exists()

    promoted = json.loads(call("retune", study, "--json", *edited, "--set", "retune.promote.approval=manual"))
    assert promoted["verdict"] == "waiting", promoted
    assert "max-num-seqs: 4" in deployed(folder)
    call("approve", study)
    promoted = json.loads(call("retune", study, "--json", *edited, "--set", "retune.promote.approval=manual"))
    assert promoted["verdict"] == "promoted", promoted
    assert "max-num-seqs: 4" not in deployed(folder)
    assert (folder / "short/retune/0001/study.yaml").is_file()

    (folder / "code").write_text("1")
    call("rollback", study, code=1)  # the hook fails: what was deployed is deployed again
    assert "max-num-seqs: 4" not in deployed(folder)
    (folder / "code").unlink()
    call("rollback", study)
    assert "max-num-seqs: 4" in deployed(folder)
    assert (folder / "called").read_text().splitlines() == ["promote 2", "rollback 1", "restore 2", "rollback 1"]

    assert 'autotune_retune_passes_total{study="short",verdict="promoted"} 1' in (folder / "retune.prom").read_text()
    table = json.loads(call("history", study, "--json"))
    assert [row["verdict"] for row in table["passes"]] == ["nothing", "waiting", "promoted"]
    assert table["current"] == 1
    call("history", study, "--plot", folder / "history.html")
    assert "incumbent" in (folder / "history.html").read_text()
    assert "deployed" in call("history", study)
    assert [path.name for path in folder.rglob("*.partial")] == []


@pytest.mark.slow
@pytest.mark.parametrize("noticed_by", ["fingerprint", "canary"])
def test_what_cannot_serve_any_more_is_replaced_by_what_can(study: Path, noticed_by: str) -> None:
    """The deployed context length fits an H100; then the card is a small one, and the study's baseline is corrected."""
    first = ("--set", "baseline.args.max_model_len=131072")
    call("run", study, "--plain", "--set", "search.trials=1", *first)
    call("retune", study, "--json", "--set", "retune.triggers.canary=false", *first)
    assert "max-model-len: 131072" in deployed(study.parent)

    smaller = ("--set", "engine.simulate.card=l4", "--set", "baseline.args.max_model_len=2048")
    smaller += ("--set", f"retune.triggers.fingerprint={str(noticed_by == 'fingerprint').lower()}")
    ending = json.loads(call("retune", study, "--json", *smaller))
    assert ending["verdict"] == "promoted", ending
    assert any(reason.startswith(noticed_by) for reason in ending["reasons"])
    assert any(reason.startswith("the incumbent cannot serve any more (") for reason in ending["reasons"])
    assert "max-model-len: 2048" in deployed(study.parent)


def test_commands_say_what_is_missing(study: Path) -> None:
    assert "has no results" in str(CliRunner().invoke(app, ["retune", str(study)]).exception)


def test_units_are_written(study: Path) -> None:
    unit = call("schedule", study, "--install", "systemd", "--user", "tuner")
    assert f"-m autotune schedule {study}" in unit and "User=tuner" in unit and "KillSignal=SIGTERM" in unit
    out = study.parent / "job.yaml"
    call("schedule", study, "--cron", "0 4 * * 6", "--timezone", "Europe/Berlin", "--install", "kubernetes",
         "--image", "registry/tuner:1", "--out", out)  # fmt: skip
    job = YAML(typ="safe").load(out.read_text())
    assert job["spec"]["schedule"] == "0 4 * * 6" and job["spec"]["timeZone"] == "Europe/Berlin"
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"][:4] == ["python3", "-m", "autotune", "retune"]
