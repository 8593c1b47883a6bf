"""Passes of re-tuning on the real vLLM: a canary that finds nothing, then a load that has changed and a promotion."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from autotune.engine.cpu_setup import CpuEngine
from autotune.outcome import Measured, TrialRecord
from autotune.study import open_study
from tests.desk import Desk

pytestmark = [pytest.mark.real_engine, pytest.mark.long, pytest.mark.timeout(2400)]

STUDY = """\
name: kept
model: smollm2-135m
engine:
  python: cpu
  args: {max_model_len: 1024, enforce_eager: true, kv_cache_memory_bytes: 268435456}
  ready_timeout: 300s
hardware: {gpus: 0}
baseline: {args: {max_num_seqs: 1}}
space:
  parameters:
    max_num_seqs: {ladder: [1, 8]}
load:
  input_tokens: 64
  output_tokens: 16
  arrivals: closed
  levels: [6]
  warmup: {requests: 6, max_duration: 20s, tolerance: 50%}
  window: {duration: 4s, requests: 24, max_duration: 120s}
objectives: [{metric: output_throughput}]
quality: {documents: 4, positions: 16}
search: {trials: 1, sentinel_every: 0, proposer: random, experts: false}
confirm: {rounds: 2, finalists: 1, minimise: false}
retune:
  budget: {configurations: 2, time: 30m}
  triggers: {canary_drop: 30%}  # what others do on these cores is no drift
  metrics_file: kept.prom
  hooks:
    before: [{command: [PYTHON, -c, "open('hooks', 'a').write('before ')"]}]
    after: [{command: [PYTHON, -c, "open('hooks', 'a').write('after ')"]}]
"""


def test_a_real_pass_finds_nothing_and_the_next_one_promotes(
    cpu_vllm: CpuEngine, desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "kernels"))  # a cache of torch's, made to stay
    desk.write(STUDY.replace("PYTHON", sys.executable), "kept.yaml")
    done = desk.run("run", "kept.yaml", timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr

    first = json.loads(_passed(desk, "retune", "kept.yaml", "--json"))
    assert first["verdict"] == "nothing", first
    assert "first canary since the last tuning" in " ".join(first["reasons"])
    current = desk.folder / "deploy/current/kept.yaml"
    assert "max-num-seqs: 1\n" in current.read_text()

    text = (desk.folder / "kept.yaml").read_text().replace("output_tokens: 16", "output_tokens: 24")
    desk.write(text, "kept.yaml")
    second = json.loads(_passed(desk, "retune", "kept.yaml", "--json"))
    assert second["verdict"] == "promoted", second
    assert any("`load` of the study file has changed" in reason for reason in second["reasons"])
    assert "max-num-seqs: 8\n" in current.read_text()
    assert (desk.folder / "hooks").read_text() == "before after "

    told = json.loads(_passed(desk, "history", "kept.yaml", "--json"))
    version = told["versions"][-1]
    assert told["current"] == 2 and version["gains"][0][2] > 1.03  # six requests in flight, one or eight served at once
    assert version["quality"].startswith("answers "), version["quality"]
    records = _records(desk.folder / "kept/retune/0001/study.yaml")
    assert {record.resolved.version for record in records if record.resolved} == {cpu_vllm.version}
    gates = [record.outcome.quality for record in records if isinstance(record.outcome, Measured)]
    assert any(gate is not None for gate in gates)
    assert all(path.name[:6] != "canary" for path in (desk.folder / "kept/retune").iterdir())
    assert 'passes_total{study="kept",verdict="promoted"} 1' in (desk.folder / "kept.prom").read_text()
    desk.wait_until_nothing_is_left()


def _passed(desk: Desk, *words: str) -> str:
    done = desk.run(*words, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _records(path: Path) -> tuple[TrialRecord, ...]:
    store = open_study(path).existing_store()
    try:
        return store.history()
    finally:
        store.close()
