"""Tensor and data parallel on two CPU ranks of the real vLLM: one study over both layouts, two starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.engine.cpu_setup import CpuEngine
from autotune.outcome import Measured
from tests.desk import Desk
from tests.engine.tiny_models import tiny_llama

pytestmark = [pytest.mark.real_engine, pytest.mark.long]

STUDY = """\
name: layouts
model: {model}
engine:
  python: cpu
  args: {{max_model_len: 1024, enforce_eager: true, kv_cache_memory_bytes: 134217728, load_format: dummy}}
  env: {{VLLM_CPU_OMP_THREADS_BIND: "{binding}", NCCL_NVLS_ENABLE: "0"}}
  ready_timeout: 600s
hardware: {{gpus: 0}}
baseline: {{args: {{tensor_parallel_size: 2}}}}
space:
  name: layouts
  parameters:
    parallel: {{layout: {{tensor_parallel: [1, 2], data_parallel: [1, 2]}}}}
  require: [gpus_used == 2]
load:
  input_tokens: 64
  output_tokens: 16
  arrivals: closed
  levels: [4]
  warmup: {{requests: 4, max_duration: 30s, tolerance: 50%}}
  window: {{duration: 3s, requests: 20, max_duration: 120s}}
objectives: [{{metric: output_throughput}}]
quality: {{enabled: false}}
search: {{trials: 2, sentinel_every: 0, proposer: grid, experts: false}}
confirm: {{rounds: 0}}
"""


def test_two_ranks_as_tensor_and_as_data_parallel(
    cpu_vllm: CpuEngine, desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "kernels"))  # a cache of torch's, made to stay
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("two ranks need two cores")
    model = tiny_llama(cpu_vllm, tmp_path / "tiny-llama")
    desk.write(STUDY.format(model=model, binding=f"{cores[0]}|{cores[1]}"), "layouts.yaml")
    done = desk.run("run", "layouts.yaml", timeout=850)
    assert done.returncode == 0, done.stdout + done.stderr
    assert desk.left() == []

    records = desk.result("layouts.yaml").records
    measured = {
        (record.config.get("tensor_parallel_size", 1), record.config.get("data_parallel_size", 1)): record
        for record in records
        if isinstance(record.outcome, Measured)
    }
    assert measured.keys() == {(2, 1), (1, 2)}, records
    for (tensor, data), record in measured.items():
        assert record.resolved is not None and isinstance(record.outcome, Measured)
        said = dict(record.resolved.values)
        assert (said["tensor_parallel_size"], said["data_parallel_size"]) == (tensor, data)
        (level,) = record.outcome.load.levels
        assert level.requests >= 20 and level.errors == 0
    tensor, data = (dict(measured[key].outcome.load.levels[0].engine) for key in ((2, 1), (1, 2)))  # type: ignore[union-attr]
    assert not any(name.startswith("engine_") for name in tensor), "tensor parallel ranks are one engine"
    written = [data["engine_0_generation_tokens"], data["engine_1_generation_tokens"]]
    assert min(written) > 0 and sum(written) == data["generation_tokens"]
    assert 1.0 <= data["engine_imbalance"] < 2.0, "both ranks answer"
