"""What a start says, and that the rest of the project understands it."""

from pathlib import Path

import pytest

from autotune.engine.startlog import StartLog

from .conftest import serving

METRICS = Path(__file__).parents[2] / "data" / "metric_names_0.32.0.txt"


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    arguments = [
        "--max-model-len",
        "8192",
        "--served-model-name",
        "m",
        "--max-num-seqs",
        "512",
        "--quantization",
        "fp8",
    ]
    with serving(tmp_path_factory.mktemp("start"), *arguments, model="glm-4-9b", CARD="h200") as server:
        yield server


def test_the_log_reads_like_vllms(started):
    log = StartLog().feed_all(started.text().splitlines())
    facts = log.facts
    assert log.ready
    assert facts.weights_gib == pytest.approx(9.9, abs=0.3)
    assert facts.available_kv_gib == pytest.approx(117, abs=1)
    assert facts.kv_cache_tokens is not None
    assert facts.kv_cache_tokens * 40960 / 2**30 == pytest.approx(facts.available_kv_gib, abs=0.01)
    assert facts.peak_activation_gib == pytest.approx(1.24, abs=0.01)
    assert facts.cuda_graph_gib == pytest.approx(1.02, abs=0.01)
    assert facts.compile_s == 37.0
    assert facts.init_s is not None
    assert facts.init_s > facts.compile_s
    assert (facts.total_gib, facts.free_gib) == (139.8, 139.29)
    assert facts.max_num_batched_tokens == 8192
    assert facts.async_scheduling is True
    assert facts.vllm_version.endswith("+simulated")
    assert facts.resolved_value("quantization") == "fp8"


def test_the_engine_tells_its_configuration(started):
    config = started.json("/server_info?config_format=json")["vllm_config"]
    assert config["scheduler_config"]["max_num_seqs"] == 512
    assert config["model_config"]["quantization"] == "fp8"
    assert config["cache_config"]["cache_dtype"] == "auto"
    assert config["compilation_config"]["cudagraph_mode"] == "FULL_AND_PIECEWISE"
    assert config["compilation_config"]["cudagraph_capture_sizes"][-1] == 512


def test_all_metric_families_of_vllm_are_there(started):
    wanted = {line for line in METRICS.read_text().splitlines() if line[0] != "#"}
    text = started.request("/metrics")[1].decode()
    assert wanted <= {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}


def test_limits_change_on_a_running_engine_below_those_of_the_start(started):
    assert started.request("/autotune/reconfigure", {"max_num_seqs": 1})[0] == 200
    assert started.request("/autotune/reconfigure", {"max_num_seqs": 513})[0] == 400
    assert started.request("/autotune/reconfigure", {"block_size": 32})[0] == 400
    assert started.request("/autotune/reconfigure", {})[0] == 200


def test_a_second_start_finds_the_compilation_of_the_first(tmp_path):
    seconds = []
    for batched in ("4096", "4096", "2048"):
        cache = str(tmp_path / "cache")
        with serving(tmp_path, "--max-num-batched-tokens", batched, VLLM_CACHE_ROOT=cache) as server:
            seconds.append(StartLog().feed_all(server.text().splitlines()).facts.compile_s)
    assert seconds == [37.0, 7.0, 37.0]


def test_start_up_takes_its_scaled_time(tmp_path):
    with serving(tmp_path, ready=False, STARTUP="1", SPEED="100") as server:
        server.wait_ready()
        log = StartLog().feed_all(server.text().splitlines())
        assert log.ready
    with serving(tmp_path, ready=False, STARTUP="1", SPEED="1") as server:
        server.process.terminate()
        assert server.process.wait(5) in (0, -15)  # stopped in the middle of a start, or before it knew how


def test_a_machine_that_is_too_slow_is_told_of(tmp_path):
    """At a thousand times real time no machine keeps up; then the figures cannot be believed, and it says so."""
    with serving(tmp_path, "--max-model-len", "4096", SPEED="1000") as server:
        body = {"prompt": list(range(100)), "max_tokens": 3000, "ignore_eos": True, "stream": True}
        server.request("/v1/completions", body)
        text = server.request("/metrics")[1].decode()
    lag = next(line for line in text.splitlines() if line.startswith("autotune_simulator_lag_seconds "))
    assert float(lag.split()[1]) > 0
