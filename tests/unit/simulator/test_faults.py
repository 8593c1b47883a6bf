"""The faults a test can order."""

import json
import signal
import subprocess
import time

import psutil
import pytest

from autotune.simulator.faults import SimulationEnvironment

from .conftest import serving

BODY = {"prompt": list(range(20)), "max_tokens": 8, "ignore_eos": True}


def test_unknown_faults_and_cards_are_refused(tmp_path):
    with pytest.raises(ValueError, match="unknown fault 'explode'"):
        SimulationEnvironment.from_environment({"AUTOTUNE_SIM_FAULT": "explode"})
    with pytest.raises(ValueError, match="above 0"):
        SimulationEnvironment.from_environment({"AUTOTUNE_SIM_SPEED": "0"})
    with serving(tmp_path, ready=False, CARD="h999") as server:
        assert server.process.wait(20) == 2
        assert "known are h100, h200, a100, l4" in server.text()


def test_exit_after_ready(tmp_path):
    with serving(tmp_path, FAULT="exit_after_ready") as server:
        assert server.process.wait(5) == 0


def test_exit_at_a_phase(tmp_path):
    with serving(tmp_path, ready=False, FAULT="exit_at:capture") as server:
        assert server.process.wait(20) == 1
        assert "simulated failure in phase capture" in server.text()


def test_hang_at_a_phase_ends_on_sigterm_only(tmp_path):
    with serving(tmp_path, ready=False, FAULT="hang_at:compile") as server:
        deadline = time.monotonic() + 15
        while "hangs in phase compile" not in server.text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert server.process.poll() is None
        assert "torch.compile took" not in server.text()
        server.process.terminate()
        assert server.process.wait(5) == 0


def test_ignore_sigterm(tmp_path):
    with serving(tmp_path, FAULT="ignore_sigterm") as server:
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(0.5)
        assert server.request("/health")[0] == 200


@pytest.mark.parametrize("stream", [False, True])
def test_death_under_load_ends_with_code_0_and_an_engine_error(tmp_path, stream):
    with serving(tmp_path, FAULT="die_under_load:1") as server:
        status, content = server.request("/v1/completions", {**BODY, "stream": stream})
        assert status == 500 or b"EngineCore encountered an issue" in content
        assert server.process.wait(5) == 0
        assert "EngineDeadError" in server.text()


def test_death_after_some_requests(tmp_path):
    with serving(tmp_path, FAULT="die_after:2") as server:
        for _ in range(2):
            server.json("/v1/completions", BODY)
        assert server.process.wait(5) == 0


def test_out_of_memory_under_load_kills_the_engine(tmp_path):
    """Log-probabilities of a long prompt need more than a tight start has left."""
    arguments = ["--kv-cache-memory-bytes", "60G", "--max-num-batched-tokens", "16384", "--max-num-seqs", "64"]
    with serving(tmp_path, *arguments) as server:
        body = {"prompt": list(range(12000)), "max_tokens": 1}
        assert server.request("/v1/completions", body)[0] == 200
        assert server.request("/v1/completions", {**body, "prompt_logprobs": 1})[0] == 200  # cached: little to compute
        server.request("/reset_prefix_cache", {})
        assert server.request("/v1/completions", {**body, "prompt_logprobs": 1})[0] == 500
        assert server.process.wait(5) == 0
        assert "torch.OutOfMemoryError: CUDA out of memory." in server.text()


def test_garbage(tmp_path):
    with serving(tmp_path, FAULT="garbage_metrics,garbage_sse") as server:
        assert b"<html>" in server.request("/metrics")[1]
        status, content = server.request("/v1/completions", {**BODY, "stream": True})
        assert status == 200
        with pytest.raises(json.JSONDecodeError):
            json.loads(content.split(b"\n\n")[0].removeprefix(b"data: "))


def test_wrong_counts(tmp_path):
    with serving(tmp_path, FAULT="stop_tokens,wrong_usage") as server:
        counts = [server.json("/v1/completions", BODY)["usage"]["completion_tokens"] for _ in range(2)]
        assert counts == [9, 3]


def test_error_rate(tmp_path):
    with serving(tmp_path, FAULT="error_rate:0.5") as server:
        statuses = [server.request("/v1/completions", BODY)[0] for _ in range(30)]
        assert {200, 500} == set(statuses)


def test_a_flood_of_log_lines_does_not_stop_the_start(tmp_path):
    with serving(tmp_path, FAULT="log_flood") as server:
        assert server.text().count("simulated flood") == 10_000


def test_a_leaked_process_stays(tmp_path):
    with serving(tmp_path, FAULT="leak_process") as server:
        leaked = psutil.Process(server.process.pid).children()
        server.process.terminate()
        assert server.process.wait(5) == 0
        assert leaked
        assert leaked[0].is_running()
