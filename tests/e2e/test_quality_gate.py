"""A study whose fastest variant answers worse than the baseline does not recommend it."""

from __future__ import annotations

import pytest

from autotune.outcome import Measured
from autotune.result import StudyResult
from autotune.search.objectives import searched
from tests.damaged_variant import check_never_recommended, with_setting
from tests.desk import Desk

STUDY = """\
name: damaged
model: llama-3.1-8b
engine:
  kind: simulated
  simulate: {card: h100, clock: virtual, noise: 0%}
hardware: {gpus: 1}
baseline: {args: {max_num_seqs: 4}}
space:
  name: damaged
  parameters:
    quantization: {choice: [fp8, null]}
    max_num_seqs: {choice: [16, 8, 4]}
load:
  input_tokens: 64
  output_tokens: 16
  arrivals: closed
  levels: [16]
  warmup: {requests: 16, max_duration: 5s, tolerance: 50%}
  window: {duration: 4s, requests: 40}
objectives: [{metric: output_throughput}]
quality: {documents: 12, positions: 64, kl_limit: 0.002}
search: {trials: 6, sentinel_every: 0, proposer: grid, experts: false}
confirm: {rounds: 2, finalists: 1, minimise: false}
"""
"""The simulator's 8-bit weights are 0.003 to 0.012 nats per token away from 16 bits: within the usual limit."""
USUAL = ["--set", "quality.kl_limit=0.02", "--set", "quality.perplexity_limit=0.05"]


def ran(desk: Desk, *words: str) -> StudyResult:
    desk.write(STUDY, "damaged.yaml")
    done = desk.run("run", "damaged.yaml", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return desk.result("damaged.yaml")


def throughput(result: StudyResult, number: int) -> float:
    record = next(record for record in result.records if record.number == number)
    values = result.objectives.values(record)
    assert values is not None
    return values[0]


@pytest.mark.slow
def test_a_faster_variant_beyond_the_limit_is_never_recommended(desk: Desk) -> None:
    result = ran(desk)
    damaged = check_never_recommended(result, "quantization", "fp8")
    others = [record for record in searched(result.records) if isinstance(record.outcome, Measured)]
    best = max((record for record in others if record is not damaged), key=lambda one: throughput(result, one.number))
    assert throughput(result, damaged.number) > throughput(result, best.number), "it was worth a temptation"
    tried = {(record.config.get("quantization"), record.config.get("max_num_seqs")) for record in others}
    assert tried == {(None, 4), ("fp8", 16), (None, 8), (None, 16)}, "fp8 with 8 and 4 is not proposed any more"
    assert result.confirmation is not None
    assert [arm.config.get("quantization") for arm in result.confirmation.arms] == [None]


@pytest.mark.slow
def test_within_the_limit_the_same_variant_is_the_finalist(desk: Desk) -> None:
    """So it is the gate that keeps it out, and nothing else."""
    result = ran(desk, *USUAL)
    eight_bit = with_setting(result, "quantization", "fp8")
    assert all(isinstance(one.outcome, Measured) and one.outcome.quarantine == () for one in eight_bit)
    assert {one.config.get("max_num_seqs") for one in eight_bit} == {16, 8, 4}
    assert all(result.objectives.feasible(one) for one in eight_bit)
    assert result.confirmation is not None
    (arm,) = result.confirmation.arms
    assert arm.config.get("quantization") == "fp8"
    assert arm.limits_hold, arm.problems
