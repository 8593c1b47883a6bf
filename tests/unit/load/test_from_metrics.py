"""A load from the histograms of a running server."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

from autotune.cli.load import load as command
from autotune.errors import EnvironmentFault, SpecError
from autotune.load.from_metrics import Bucket, buckets_between, observe, observed_load, read_snapshot, write_load
from autotune.load.lengths import draw_lengths
from autotune.spec.study import LengthSpec


def text(prompts: dict[str, int], answers: dict[str, int], running: int = 3) -> str:
    lines = ["# TYPE vllm:request_prompt_tokens histogram", f'vllm:num_requests_running{{engine="0"}} {running}.0']
    for name, counts in (("prompt", prompts), ("generation", answers)):
        lines += [
            f'vllm:request_{name}_tokens_bucket{{engine="0",le="{edge}",model_name="m"}} {count}.0'
            for edge, count in counts.items()
        ]
    return "\n".join(lines)


BEFORE = text({"10.0": 5, "100.0": 5, "+Inf": 5}, {"10.0": 5, "+Inf": 5})
AFTER = text({"10.0": 5, "100.0": 25, "+Inf": 35}, {"10.0": 25, "+Inf": 35})


def test_everything_since_the_start():
    seen = observed_load(None, read_snapshot(AFTER), 0.0)
    assert seen.input_tokens == (Bucket(0, 10, 5), Bucket(10, 100, 20), Bucket(100, 200, 10))
    assert seen.requests == 35 and seen.rate is None and seen.concurrency == 3


def test_the_difference_of_two_readings():
    seen = observed_load(read_snapshot(BEFORE), read_snapshot(AFTER), 10.0)
    assert seen.input_tokens == (Bucket(10, 100, 20), Bucket(100, 200, 10))
    assert seen.rate == pytest.approx(3.0)


def test_engines_are_summed():
    both = AFTER + "\n" + AFTER.replace('engine="0"', 'engine="1"')
    assert observed_load(None, read_snapshot(both), 0.0).requests == 70


def test_no_requests_and_no_histograms():
    with pytest.raises(SpecError, match="no request has ended"):
        observed_load(read_snapshot(AFTER), read_snapshot(AFTER), 5.0)
    with pytest.raises(SpecError, match="no length histograms"):
        observed_load(None, read_snapshot("up 1\n"), 0.0)
    assert buckets_between({}, {}) == ()


def test_what_is_written_can_be_drawn_from(tmp_path):
    files = write_load(observed_load(None, read_snapshot(AFTER), 0.0), tmp_path / "mine.yaml")
    drawn = draw_lengths(LengthSpec(kind="empirical", file=str(files[1])), np.random.default_rng(1), 7000)
    assert (drawn <= 10).mean() == pytest.approx(5 / 35, abs=0.03)
    assert (drawn > 100).mean() == pytest.approx(10 / 35, abs=0.03)
    section = files[0].read_text()
    assert "file: mine-input.json" in section and "levels: [3]" in section


async def test_a_server_without_metrics(start_server):
    server = await start_server()
    with pytest.raises(SpecError, match="no length histograms"):
        await observe(server.target)
    await server.stop()
    with pytest.raises(EnvironmentFault, match="cannot reach"):
        await observe(server.target)


def test_bad_options(tmp_path):
    for arguments in (["--out", str(tmp_path / "a"), "--watch", "long"], ["--out", "/nowhere/at/all.yaml"]):
        result = CliRunner().invoke(command, ["from-metrics", "http://127.0.0.1:1", *arguments])
        assert isinstance(result.exception, SpecError)
