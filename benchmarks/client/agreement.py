"""`autotune bench --definitions vllm` and `vllm bench serve` in turn on one running server: the same figures?

    python benchmarks/client/agreement.py http://127.0.0.1:8000 --python VLLM_PYTHON --tokenizer FOLDER [--rounds 5]

Closed loop, both with the same number of requests of the same lengths; a round is one run of each, the order changes
from round to round, and one run of ours before them warms the server up. Ratios are taken within rounds. Beside an
engine on the same processor the clients need cores of their own (`--cores 1`, and the engine bound to the others): a
client that takes the engine's time measures itself.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

KEYS = ("request_throughput", "output_throughput", "median_ttft_ms", "mean_ttft_ms", "median_tpot_ms", "mean_tpot_ms",
        "median_itl_ms", "median_e2el_ms")  # fmt: skip
TIMEOUT = 300
Figures = dict[str, float]


@dataclass(frozen=True)
class Job:
    """What both clients do: `requests` of `input_tokens` and `output_tokens`, `streams` at a time, on `cores`."""

    url: str
    model: str
    python: str
    tokenizer: str
    streams: int = 2
    requests: int = 20
    input_tokens: int = 64
    output_tokens: int = 32
    cores: tuple[int, ...] = ()

    def bind(self) -> None:
        """In a client's process: stay on the given cores; without any, wherever it may run."""
        if self.cores:
            os.sched_setaffinity(0, self.cores)


def run_ours(job: Job, seed: int) -> Figures:
    """Our command line, whole."""
    command = [
        sys.executable, "-m", "autotune", "bench", job.url, "--model", job.model, "--definitions", "vllm", "--json",
        "--levels", str(job.streams), "--requests", str(job.requests), "--input-tokens", str(job.input_tokens),
        "--output-tokens", str(job.output_tokens), "--seed", str(seed),
    ]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT, preexec_fn=job.bind)
    return {key: float(value) for key, value in json.loads(done.stdout)["levels"][0]["metrics"].items()}


def run_vllm(job: Job, seed: int) -> Figures:
    """vLLM's own client."""
    with tempfile.TemporaryDirectory(prefix="vllm-bench-") as folder:
        command = [
            job.python, "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai",
            "--base-url", job.url, "--model", job.model, "--tokenizer", job.tokenizer, "--dataset-name", "random",
            "--random-input-len", str(job.input_tokens), "--random-output-len", str(job.output_tokens),
            "--num-prompts", str(job.requests), "--max-concurrency", str(job.streams), "--ignore-eos",
            "--temperature", "0", "--seed", str(seed), "--percentile-metrics", "ttft,tpot,itl,e2el",
            "--save-result", "--result-dir", folder, "--result-filename", "vllm.json",
        ]  # fmt: skip
        quiet = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
        subprocess.run(
            command, check=True, capture_output=True, timeout=TIMEOUT, env=os.environ | quiet, preexec_fn=job.bind
        )
        body = json.loads((Path(folder) / "vllm.json").read_text())
    return {key: float(value) for key, value in body.items() if isinstance(value, int | float)}


def compare(job: Job, rounds: int) -> list[tuple[Figures, Figures]]:
    """(ours, vLLM's) of every round.

    Raises:
        AssertionError: a client did not do the whole job.
    """
    found = []
    run_ours(job, 1000)  # warms the server up
    for number in range(1, rounds + 1):
        runs = {}
        for run in (run_ours, run_vllm) if number % 2 else (run_vllm, run_ours):
            runs[run] = run(job, 1000 + number)
        ours, theirs = runs[run_ours], runs[run_vllm]
        for figures in (ours, theirs):
            assert figures["completed"] == job.requests, figures
            assert figures["total_output_tokens"] == job.requests * job.output_tokens, figures
        found.append((ours, theirs))
    return found


def ratios(found: list[tuple[Figures, Figures]], key: str) -> list[float]:
    """Ours over vLLM's, a round each, ascending."""
    return sorted(ours[key] / theirs[key] for ours, theirs in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--model", required=True)
    parser.add_argument("--python", required=True, help="interpreter that has vllm")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    for name in ("streams", "requests", "input_tokens", "output_tokens"):
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=getattr(Job, name))
    parser.add_argument("--cores", type=lambda text: tuple(map(int, text.split(","))), default=(), help="such as 1,2")
    options = vars(parser.parse_args())
    rounds = options.pop("rounds")
    found = compare(Job(**options), rounds)
    print("| figure | ours | vllm bench serve | ratio, median | ratio, lowest to highest |\n|---|---|---|---|---|")
    for key in KEYS:
        ours, theirs = (statistics.median(pair[side][key] for pair in found) for side in (0, 1))
        each = ratios(found, key)
        print(
            f"| {key} | {ours:.2f} | {theirs:.2f} | {statistics.median(each):.3f} | {each[0]:.3f} to {each[-1]:.3f} |"
        )


if __name__ == "__main__":
    main()
