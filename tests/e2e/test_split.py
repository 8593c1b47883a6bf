"""A study over prefill and decode engines by the real command line, on simulated cards."""

from __future__ import annotations

from autotune.outcome import Measured
from tests.desk import Desk

STUDY = """\
name: split
model: llama-3.1-8b
engine:
  kind: simulated
  simulate: {card: h100, speed: 10, startup: 0, noise: 0%}
hardware: {gpus: 2}
topology: {kind: disaggregated, transfer: nixl}
space:
  name: ratios
  parameters:
    topology.prefill: {choice: [1, 2]}
load:
  input_tokens: 1024
  output_tokens: 16
  arrivals: closed
  levels: [4]
  warmup: {requests: 4, max_duration: 5s, tolerance: 50%}
  window: {duration: 4s, requests: 20}
objectives: [{metric: output_throughput, per_gpu: true}]
quality: {enabled: false}
search: {trials: 2, sentinel_every: 0, proposer: grid, experts: false}
confirm: {rounds: 0}
"""


def test_replicas_and_ratios_are_compared_on_the_same_gpus(desk: Desk) -> None:
    desk.write(STUDY, "split.yaml")
    planned = desk.run("plan", "split.yaml")
    assert "1 prefill, 1 decode" in planned.stdout and "refused: 2 prefill" in planned.stdout, planned.stdout
    done = desk.run("run", "split.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert desk.left() == []

    records = desk.result("split.yaml").records
    by_prefill = {record.config.get("topology.prefill"): record for record in records}
    baseline, split = by_prefill[None], by_prefill[1]
    assert isinstance(baseline.outcome, Measured) and isinstance(split.outcome, Measured), records
    assert baseline.gpus == split.gpus == 2, "both are charged for the same GPUs"
    shared = dict(baseline.outcome.load.levels[0].engine)
    assert shared["engine_imbalance"] < 1.5, "replicas take turns"
    handed = dict(split.outcome.load.levels[0].engine)
    # Each prompt costs the prefill engine one token; all others are written by the decode engine.
    assert handed["engine_decode-0_generation_tokens"] > 10 * handed["engine_prefill-0_generation_tokens"] > 0

    shown = desk.run("show", "split.yaml", "--trial", str(split.number))
    assert "--port 8001" in shown.stdout and "autotune.engine.router" in shown.stdout
    assert shown.stdout.count("NixlConnector") == 2
    refused = desk.run("export", "split.yaml", "--pick", f"trial:{split.number}")
    assert refused.returncode == 2 and "several engines behind a router" in refused.stderr
