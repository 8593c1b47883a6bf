"""A study on the real vLLM: killed in the middle, resumed to its end, its export read by vLLM's own parser."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from autotune.engine.cpu_setup import CpuEngine
from autotune.outcome import Broken, Measured
from tests.desk import Desk, wait_for_event

pytestmark = pytest.mark.real_engine

STUDY = """\
name: real
model: smollm2-135m
engine:
  python: cpu
  args: {max_model_len: 1024, enforce_eager: true, kv_cache_memory_bytes: 268435456}
  ready_timeout: 300s
hardware: {gpus: 0}
space:
  name: small
  parameters:
    max_num_seqs: {ladder: [1, 2, 4, 64]}
    max_num_batched_tokens: {ladder: [128, 2048]}
load:
  input_tokens: 64
  output_tokens: 8
  arrivals: closed
  levels: [2]
  warmup: {requests: 2, max_duration: 20s, tolerance: 50%}
  window: {duration: 3s, requests: 20, max_duration: 120s}
objectives:
  - metric: output_throughput
  - metric: ttft
    percentile: 75
quality: {documents: 4, positions: 16}
search: {trials: 3, sentinel_every: 0, proposer: random, experts: false}
confirm: {rounds: 0}
"""
PARSER = Path(__file__).with_name("parse_arguments.py")


def test_killed_resumed_exported(
    cpu_vllm: CpuEngine, desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "kernels"))  # a cache of torch's, made to stay
    desk.write(STUDY, "real.yaml")
    first = desk.start("run", "real.yaml", "--json")
    wait_for_event(first, lambda event: event["event"] == "trial_finished" and event["outcome"] == "measured")
    wait_for_event(first, lambda event: event["event"] == "stage" and event["detail"] != "")
    assert desk.engines(), "the next trial's engine is starting"
    first.send_signal(signal.SIGKILL)
    first.wait()
    desk.wait_until_nothing_is_left()
    kept = desk.result("real.yaml").records
    assert isinstance(kept[-1].outcome, Measured), kept
    # A measurement that a busy machine spoilt is repeated: a fault of neither run.
    spoilt = [record.outcome for record in kept[:-1]]
    assert all(isinstance(item, Broken) and item.cause == "invalid_measurement" for item in spoilt), spoilt

    done = desk.run("run", "real.yaml", timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert desk.left() == []
    result = desk.result("real.yaml")
    assert result.records[: len(kept)] == kept
    faults = [record.outcome for record in result.records if isinstance(record.outcome, Broken)]
    assert [fault.cause for fault in faults].count("interrupted") == 1
    assert {fault.cause for fault in faults} <= {"interrupted", "invalid_measurement"}, faults
    measured = [record for record in result.records if isinstance(record.outcome, Measured)]
    assert len(measured) == len({record.config.hash for record in measured}) == 3
    for record in measured:
        assert isinstance(record.outcome, Measured)
        assert record.outcome.quality is not None
        assert record.resolved is not None and record.resolved.version == cpu_vllm.version
        assert record.config.get("max_model_len") == 1024

    best = result.front[0]
    exported = desk.run("export", "real.yaml", "--pick", f"trial:{best.number}", "--out", "best.yaml")
    assert exported.returncode == 0, exported.stderr
    case = {"argv": [], "file": str(desk.folder / "best.yaml"), "names": [name for name, _ in best.config.args]}
    (desk.folder / "cases.json").write_text(json.dumps([case]))
    words = [str(cpu_vllm.python), str(PARSER), str(desk.folder / "cases.json"), str(desk.folder / "answers.json")]
    parsed = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert parsed.returncode == 0, parsed.stderr[-2000:]
    _, from_file = json.loads((desk.folder / "answers.json").read_text())
    assert from_file == dict(best.config.args)
