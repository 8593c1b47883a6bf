"""`autotune bench` and `autotune load from-metrics` as commands, on a simulated vLLM of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from autotune.load.lengths import draw_lengths
from autotune.spec.study import LengthSpec

STARTUP_S = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a simulated server."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with (tmp_path_factory.mktemp("server") / "log").open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "autotune.simulator", "serve", "Qwen/Qwen3-8B", "--host", "127.0.0.1", "--port",
             str(port)],
            stdout=out, stderr=out, env=os.environ | {"AUTOTUNE_SIM_STARTUP": "0.01"},
        )  # fmt: skip
    try:
        deadline = time.monotonic() + STARTUP_S
        while not _answers(url):
            assert time.monotonic() < deadline and process.poll() is None, "the simulator does not come up"
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(20)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def autotune(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *arguments], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def bench(url: str, *more: str) -> dict:
    output = autotune("bench", url, "--levels", "2", "--duration", "1s", "--output-tokens", "12", "--json", *more)
    (level,) = json.loads(output)["levels"]
    return level


def test_image_tokens_come_from_the_server_and_count(server: str) -> None:
    """Two images of 280 x 140 pixels are 2 x 10 x 5 patches, on top of the 100 tokens of text."""
    level = bench(server, "--input-tokens", "100", "--api", "chat", "--images", "2:280x140")
    assert level["errors"] == 0
    figures = level["metrics"]
    prompts = (figures["total_throughput"]["value"] - figures["output_throughput"]["value"]) / (
        figures["output_throughput"]["value"] / 12
    )
    assert prompts == pytest.approx(200, rel=0.15)
    assert level["engine"]["prompt_tokens"] / (level["engine"]["generation_tokens"] / 12) == pytest.approx(200, rel=0.2)


def test_the_load_of_a_server_that_has_run_is_what_ran(server: str, tmp_path: Path) -> None:
    bench(server, "--input-tokens", "700")
    file = tmp_path / "load.yaml"
    assert "wrote" in autotune("load", "from-metrics", server, "--out", str(file))
    load = yaml.safe_load(file.read_text())["load"]
    lengths = {}
    for name in ("input_tokens", "output_tokens"):
        spec = LengthSpec(kind="empirical", file=str(tmp_path / load[name]["file"]))
        lengths[name] = draw_lengths(spec, np.random.default_rng(1), 2000)
    # vLLM's histogram knows 700 as something from 500 to 1,000, and 12 as something from 10 to 20.
    assert 0.2 < np.mean((lengths["input_tokens"] > 500) & (lengths["input_tokens"] <= 1000)) <= 1
    assert np.mean((lengths["output_tokens"] > 10) & (lengths["output_tokens"] <= 20)) > 0.9
