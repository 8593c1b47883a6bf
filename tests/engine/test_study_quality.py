"""A study on the real vLLM with a variant in its space that damages the answers: measured once, never recommended.

Six starts: the baseline (changed live to the only sound alternative), the damaged variant, two rounds of confirmation.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.engine.cpu_setup import CpuEngine
from autotune.outcome import Measured
from autotune.search.objectives import searched
from tests.damaged_variant import check_never_recommended
from tests.desk import Desk

pytestmark = [pytest.mark.real_engine, pytest.mark.long]

DAMAGE, OWN, WRONG = "hf_overrides.rope_parameters.rope_theta", 100_000, 500
"""A wrong RoPE base beside the model's own: the engine starts, serves as fast as ever, and answers worse."""
STUDY = f"""\
name: damaged
model: smollm2-135m
engine:
  python: cpu
  args:
    max_model_len: 1024
    enforce_eager: true
    kv_cache_memory_bytes: 268435456
    hf_overrides.rope_parameters.rope_type: default
  ready_timeout: 300s
hardware: {{gpus: 0}}
baseline: {{args: {{max_num_seqs: 4, {DAMAGE}: {OWN}}}}}
space:
  name: damaged
  parameters:
    {DAMAGE}: {{choice: [{OWN}, {WRONG}]}}
    max_num_seqs: {{choice: [4, 2]}}
load:
  input_tokens: 64
  output_tokens: 16
  arrivals: closed
  levels: [4]
  warmup: {{requests: 4, max_duration: 20s, tolerance: 50%}}
  window: {{duration: 4s, requests: 12, max_duration: 120s}}
objectives: [{{metric: output_throughput}}]
quality: {{documents: 4, positions: 32}}
search: {{trials: 5, sentinel_every: 0, proposer: grid, experts: false}}
confirm: {{rounds: 2, finalists: 1, minimise: false}}
"""


def test_a_damaged_variant_is_measured_once_and_never_recommended(
    cpu_vllm: CpuEngine, desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "kernels"))  # a cache of torch's, made to stay
    desk.write(STUDY, "damaged.yaml")
    done = desk.run("run", "damaged.yaml", timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    result = desk.result("damaged.yaml")
    damaged = check_never_recommended(result, DAMAGE, WRONG)
    assert damaged.resolved is not None and damaged.resolved.version == cpu_vllm.version
    assert isinstance(damaged.outcome, Measured) and damaged.outcome.quality is not None
    failed = {check.name for check in damaged.outcome.quality.checks if check.verdict == "failed"}
    assert "kl" in failed, damaged.outcome.quality

    measured = [record for record in searched(result.records) if isinstance(record.outcome, Measured)]
    by_setting = {(record.config.get(DAMAGE), record.config.get("max_num_seqs")): record for record in measured}
    assert by_setting.keys() == {(OWN, 4), (OWN, 2), (WRONG, 4)}, "the damage is not tried with 2 any more"
    sound = by_setting[OWN, 2]
    assert not sound.restarted, "changed on the running engine"
    better, worse = result.objectives.values(damaged), result.objectives.values(sound)
    assert better is not None and worse is not None
    assert better[0] > 1.2 * worse[0], "by its speed alone the damaged one would have been the finalist"
    assert result.confirmation is not None
    assert [(arm.config.get(DAMAGE), arm.config.get("max_num_seqs")) for arm in result.confirmation.arms] == [(OWN, 2)]
