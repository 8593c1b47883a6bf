"""Re-tuning by the real command line with the real driver on the simulated engine."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from autotune.cli.commands import app
from autotune.errors import StoreError
from autotune.study import open_study

STUDY = """\
name: short
model: llama-3.1-8b
engine: {kind: simulated, simulate: {card: h100, clock: virtual, noise: 1%}}
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

    edited = ("--set", "load.input_tokens=300", "--set", "retune.triggers.canary=false")
    said = json.loads(call("retune", study, "--json", "--dry-run", *edited))
    assert said["verdict"] == "dry run" and "`load` of the study file has changed" in "".join(said["reasons"])
    assert not (folder / "called").exists()

    promoted = json.loads(call("retune", study, "--json", *edited, "--set", "retune.promote.approval=manual"))
    assert promoted["verdict"] == "waiting", promoted
    assert "max-num-seqs: 4" in deployed(folder)
    call("approve", study)
    promoted = json.loads(call("retune", study, "--json", *edited, "--set", "retune.promote.approval=manual"))
    assert promoted["verdict"] == "promoted", promoted
    assert "max-num-seqs: 4" not in deployed(folder)
    assert (folder / "short/retune/0001/study.yaml").is_file()
    assert "Repeat with: autotune run short/retune/0001/study.yaml" in deployed(folder)

    (folder / "code").write_text("1")
    call("rollback", study, code=1)  # the hook fails: what was deployed is deployed again
    assert "max-num-seqs: 4" not in deployed(folder)
    (folder / "code").unlink()
    call("rollback", study)
    assert "max-num-seqs: 4" in deployed(folder)
    assert (folder / "called").read_text().splitlines() == ["promote 2", "rollback 1", "restore 2", "rollback 1"]

    figures = (folder / "retune.prom").read_text()
    assert 'autotune_retune_passes_total{study="short",verdict="promoted"} 1' in figures
    assert 'autotune_retune_version{study="short"} 1' in figures  # after the rollback, too
    table = json.loads(call("history", study, "--json"))
    assert [row["verdict"] for row in table["events"]] == [
        "nothing", "waiting", "approved", "promoted", "restored", "rolled back",
    ]  # fmt: skip
    assert table["current"] == 1
    call("history", study, "--plot", folder / "history.html")
    assert "incumbent" in (folder / "history.html").read_text()
    assert "deployed" in call("history", study)
    assert [path.name for path in folder.rglob("*.partial")] == []


@pytest.mark.slow
def test_what_cannot_serve_any_more_is_replaced_by_what_can(study: Path) -> None:
    """The deployed context length fits an H100; then the card is a small one, and the study's baseline is corrected."""
    quick = ("--set", "load.window={duration: 3s, requests: 20}", "--set", "engine.simulate.speed=40")
    first = (*quick, "--set", "baseline.args.max_model_len=131072")
    call("run", study, "--plain", "--set", "search.trials=1", *first)
    call("retune", study, "--json", "--set", "retune.triggers.canary=false", *first)
    assert "max-model-len: 131072" in deployed(study.parent)

    smaller = (*quick, "--set", "engine.simulate.card=l4", "--set", "baseline.args.max_model_len=2048")
    smaller += ("--set", "retune.triggers.fingerprint=false")  # the canary finds it; the year finds it by the version
    ending = json.loads(call("retune", study, "--json", *smaller))
    assert ending["verdict"] == "promoted", ending
    assert any(reason.startswith("canary: the incumbent cannot serve") for reason in ending["reasons"])
    assert any(reason.startswith("the incumbent cannot serve any more (") for reason in ending["reasons"])
    assert "max-model-len: 2048" in deployed(study.parent)


def test_commands_say_what_is_missing(study: Path) -> None:
    assert "has no results" in str(CliRunner().invoke(app, ["retune", str(study)]).exception)


def test_units_are_written(study: Path) -> None:
    unit = call("schedule", study, "--install", "systemd", "--user", "tuner", "--cron", "0 4 * * 6")
    assert f'-m autotune schedule {study} --cron "0 4 * * 6"' in unit
    assert "User=tuner" in unit and "KillSignal=SIGTERM" in unit
    assert "TimeoutStopSec=480" in unit  # giving way, and the hook may take 300 s
    out = study.parent / "job.yaml"
    call("schedule", study, "--cron", "0 4 * * 5-7", "--timezone", "Europe/Berlin", "--install", "kubernetes",
         "--image", "registry/tuner:1", "--out", out)  # fmt: skip
    job = YAML(typ="safe").load(out.read_text())
    assert job["spec"]["schedule"] == "0 4 * * fri,sat,sun" and job["spec"]["timeZone"] == "Europe/Berlin"
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    assert job["spec"]["startingDeadlineSeconds"] in (82800, 86400, 90000)  # caught up until the next one is due
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    words = ["python3", "-m", "autotune", "retune", str(study), "--set", "retune.timezone=Europe/Berlin"]
    assert pod["containers"][0]["command"] == words


def test_a_cronjob_that_would_never_find_its_window_open_is_refused(study: Path) -> None:
    study.write_text(STUDY + "  windows: [{opens: '22:00', closes: '02:00'}]\n")
    done = CliRunner().invoke(app, ["schedule", str(study), "--install", "kubernetes", "--image", "x"])
    assert "no scheduled time lies in a maintenance window" in str(done.exception)


def test_systemd_reads_the_unit_as_it_is_meant(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    folder = tmp_path / '50% of $HOME "here"'
    folder.mkdir()
    (folder / "short.yaml").write_text(STUDY)
    out = tmp_path / "retune.service"
    call("schedule", folder / "short.yaml", "--cron", "0 3 * * 0", "--install", "systemd", "--out", out)
    done = subprocess.run([analyze, "verify", "--man=no", str(out)], capture_output=True, text=True, timeout=60)
    assert not [line for line in done.stderr.splitlines() if out.name in line], done.stderr
    command = next(line for line in out.read_text().splitlines() if line.startswith("ExecStart="))
    assert '50%% of $$HOME \\"here\\"/short.yaml" --cron "0 3 * * 0"' in command


@pytest.mark.parametrize("text", ["{", '{"kind": "from tomorrow"}'])
def test_a_history_that_cannot_be_read_is_told_and_nothing_is_deployed(study: Path, text: str) -> None:
    store = open_study(study).store()
    store.open(open_study(study).spec.model_dump_json(), "")
    store.put("retune", "version", text)
    store.close()
    for command in ("retune", "rollback", "history", "approve"):
        error = CliRunner().invoke(app, [command, str(study)]).exception
        assert isinstance(error, StoreError) and "entry 1 of the re-tuning history" in str(error)
    assert not (study.parent / "deploy").exists()
