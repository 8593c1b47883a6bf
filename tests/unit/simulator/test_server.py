"""The HTTP shell as a client sees it, with the server in a process of its own."""

import json
import math
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from .conftest import serving


def prompt(length: int, first: int = 1) -> list[int]:
    return list(range(first, first + length))


def test_it_says_that_it_is_simulated(server):
    version = server.json("/version")
    assert version["version"].endswith("+simulated")
    assert version["simulated"] is True
    assert "(simulated)" in server.text()


def test_a_completion_has_exactly_the_tokens_asked_for(server):
    body = {"model": "m", "prompt": prompt(50), "max_tokens": 7, "ignore_eos": True}
    answer = server.json("/v1/completions", body)
    assert answer["usage"]["prompt_tokens"] == 50
    assert answer["usage"]["completion_tokens"] == 7
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer == answer | {"object": "text_completion", "model": "m"}


def test_a_stream_sends_one_event_a_token_and_the_usage_last(server):
    body = {"model": "m", "prompt": prompt(50), "max_tokens": 9, "ignore_eos": True}
    events = server.events("/v1/completions", {**body, "stream_options": {"include_usage": True}})
    assert len(events) == 10
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 9
    reasons = [event["choices"][0]["finish_reason"] for event in events[:-1]]
    assert reasons == [None] * 8 + ["length"]
    streamed = "".join(event["choices"][0]["text"] for event in events[:-1])
    assert streamed == server.json("/v1/completions", body)["choices"][0]["text"]


def test_a_chat_stream_begins_with_the_role(server):
    events = server.events(
        "/v1/chat/completions",
        {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "ignore_eos": True},
    )
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(events) == 4
    assert all(event["object"] == "chat.completion.chunk" for event in events)


def test_without_ignore_eos_it_may_stop_early_but_not_before_min_tokens(server):
    body = {"model": "m", "prompt": prompt(9), "max_tokens": 1000}
    answer = server.json("/v1/completions", body)
    assert answer["choices"][0]["finish_reason"] == "stop"
    longer = server.json("/v1/completions", {**body, "min_tokens": 700})
    assert longer["usage"]["completion_tokens"] == 700


def test_several_prompts_and_an_echo(server):
    body = {
        "model": "m",
        "prompt": [[1, 2], [3, 4, 5]],
        "max_tokens": 2,
        "ignore_eos": True,
        "echo": True,
        "logprobs": 1,
    }
    answer = server.json("/v1/completions", body)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["usage"] == answer["usage"] | {"prompt_tokens": 5, "completion_tokens": 4}
    tokens = answer["choices"][1]["logprobs"]
    assert len(tokens["tokens"]) == 5
    assert tokens["token_logprobs"][0] is None
    assert all(value < 0 for value in tokens["token_logprobs"][1:])


def test_text_survives_tokenize_and_detokenize(server):
    text = "Good lights cost 42 euros, w17 w170000!"
    tokens = server.json("/tokenize", {"model": "m", "prompt": text})
    assert tokens["count"] == len(tokens["tokens"])
    assert tokens["max_model_len"] == 4096
    assert server.json("/detokenize", {"model": "m", "tokens": tokens["tokens"]})["prompt"] == text


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"prompt": [1], "model": "other"}, 404, "does not exist"),
        ({"prompt": [1] * 4096, "model": "m"}, 400, "maximum context length is 4096 tokens"),
        ({"prompt": [1], "model": "m", "max_tokens": 5000}, 400, "is too large: 5000"),
        ({"prompt": [1], "model": "m", "max_tokens": 0}, 400, "max_tokens must be at least 1"),
        ({"prompt": [1], "model": "m", "max_tokens": "many"}, 400, "valid integer"),
        ({"prompt": [1], "model": "m", "logprobs": 500}, 400, "greater than max allowed: 20"),
        ({"model": "m"}, 400, "prompt"),
        ([1], 400, "valid dictionary"),
    ],
)
def test_bad_requests_are_answered_as_vllm_does(server, body, status, text):
    code, content = server.request("/v1/completions", body)
    assert code == status
    error = json.loads(content)["error"]
    assert text in error["message"]
    assert error["code"] == status


def test_metrics_count_what_was_served(tmp_path):
    with serving(tmp_path, "--served-model-name", "m", "--max-model-len", "4096") as server:
        for _ in range(2):
            server.json("/v1/completions", {"model": "m", "prompt": prompt(320), "max_tokens": 5, "ignore_eos": True})
        text = server.request("/metrics")[1].decode()
        values = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[0] != "#"}

    def value(name: str, **labels: str) -> float:
        inner = ",".join(
            f'{key}="{text}"' for key, text in sorted({"engine": "0", "model_name": "m", **labels}.items())
        )
        return values[f"vllm:{name}{{{inner}}}"]

    assert value("prompt_tokens_total") == 640
    assert value("generation_tokens_total") == 10
    assert value("request_success_total", finished_reason="length") == 2
    assert value("time_to_first_token_seconds_count") == 2
    assert value("inter_token_latency_seconds_count") == 8
    assert value("prefix_cache_hits_total") == 304
    assert value("num_requests_running") == 0
    assert value("kv_cache_usage_perc") == 0
    assert value("e2e_request_latency_seconds_bucket", le="+Inf") == 2
    assert 0 < value("time_to_first_token_seconds_sum") < 1


def test_resetting_the_prefix_cache_forgets(server):
    body = {"model": "m", "prompt": prompt(640, first=9000), "max_tokens": 1}

    def hits() -> float:
        text = server.request("/metrics")[1].decode()
        return next(
            float(line.split()[-1]) for line in text.splitlines() if line.startswith("vllm:prefix_cache_hits_total")
        )

    server.json("/v1/completions", body)
    before = hits()
    assert server.request("/reset_prefix_cache", {})[0] == 200
    server.json("/v1/completions", body)
    assert hits() == before
    server.json("/v1/completions", body)
    assert hits() == before + 624


def test_a_key_guards_v1_and_nothing_else(tmp_path):
    with serving(tmp_path, "--api-key", "secret") as server:
        assert server.request("/health")[0] == 200
        assert server.request("/v1/models")[0] == 401
        assert server.request("/v1/models", key="wrong")[0] == 401
        assert server.request("/v1/models", key="secret")[0] == 200
        assert "secret" not in server.text()


def test_the_key_may_come_from_the_environment(tmp_path):
    with serving(tmp_path, VLLM_API_KEY="secret", VLLM_NOSUCH="1") as server:
        assert server.request("/v1/models")[0] == 401
        assert server.request("/v1/models", key="secret")[0] == 200
        assert "Unknown vLLM environment variable detected: VLLM_NOSUCH" in server.text()


def test_many_streams_at_once_are_all_complete(tmp_path):
    with serving(tmp_path, "--served-model-name", "m", "--max-model-len", "4096", SPEED="5") as server:
        body = {"model": "m", "max_tokens": 40, "ignore_eos": True}
        with ThreadPoolExecutor(64) as pool:
            jobs = [
                pool.submit(server.events, "/v1/completions", {**body, "prompt": prompt(200, 1000 * number)})
                for number in range(64)
            ]
            assert all(len(job.result()) == 40 for job in jobs)
        assert server.json("/load") == {"server_load": 0}


def test_the_speed_factor_shortens_wall_time(tmp_path):
    seconds = {}
    for speed in ("1", "10"):
        with serving(tmp_path, "--max-model-len", "4096", SPEED=speed, NOISE="0") as server:
            body = {"prompt": prompt(20), "max_tokens": 200, "ignore_eos": True}
            start = time.monotonic()
            server.json("/v1/completions", body)
            seconds[speed] = time.monotonic() - start
    assert seconds["1"] > 0.9  # 200 tokens at about 5.4 ms
    assert seconds["10"] < 0.6 * seconds["1"]


def kl(left: dict, right: dict) -> float:
    """Divergence over the candidates both list, nats."""
    shared = left.keys() & right.keys()
    return sum(math.exp(left[t]["logprob"]) * (left[t]["logprob"] - right[t]["logprob"]) for t in shared)


def prompt_logprobs(tmp_path, *arguments: str) -> list[dict]:
    with serving(tmp_path, "--max-model-len", "4096", *arguments, NOISE="0") as server:
        body = {"prompt": [(7 * n * n) % 5000 for n in range(400)], "max_tokens": 1, "prompt_logprobs": 20}
        rows = server.json("/v1/completions", body)["choices"][0]["prompt_logprobs"]
    assert rows[0] is None
    assert len(rows) == 400
    return rows[1:]


def test_quantisation_moves_the_logprobs_by_what_real_models_show(tmp_path):
    """Nats per token on real models: 8-bit KV about 0.001, 8-bit weights 0.0014 to 0.01."""
    reference = prompt_logprobs(tmp_path)
    assert prompt_logprobs(tmp_path) == reference
    divergence = {}
    for name, flags in {"kv": ["--kv-cache-dtype", "fp8"], "weights": ["--quantization", "fp8"]}.items():
        rows = prompt_logprobs(tmp_path, *flags)
        divergence[name] = sum(kl(a, b) for a, b in zip(reference, rows, strict=True)) / len(rows)
    assert 0.0003 < divergence["kv"] < 0.003
    assert 0.002 < divergence["weights"] < 0.012


def test_sigterm_ends_it_within_a_second_with_code_0(tmp_path):
    with serving(tmp_path) as server:
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == 0
        assert time.monotonic() - start < 1.5
        assert "[shutdown] API server: shutdown triggered" in server.text()


def test_a_taken_port_is_refused(tmp_path):
    with serving(tmp_path) as server, serving(tmp_path, "--port", str(server.port), ready=False) as second:
        assert second.process.wait(20) == 1
        assert "address already in use" in second.text()


def test_a_client_that_goes_away_frees_its_request(tmp_path):
    import socket

    with serving(tmp_path, "--max-model-len", "4096", SPEED="1") as server:
        body = json.dumps({"prompt": prompt(100), "max_tokens": 3000, "ignore_eos": True, "stream": True}).encode()
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body)
            assert client.recv(100)
            assert server.json("/load") == {"server_load": 1}
        deadline = time.monotonic() + 5
        while server.json("/load") != {"server_load": 0}:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert 'finished_reason="abort",model_name="qwen3-8b"} 1.0' in server.request("/metrics")[1].decode()


def tree(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def wait_gone(processes: list[psutil.Process], seconds: float = 5) -> None:
    """Gone or waiting to be reaped, which is left to whoever inherited them."""
    deadline = time.monotonic() + seconds
    while any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes):
        assert time.monotonic() < deadline, processes
        time.sleep(0.05)


def test_engine_processes_outlive_a_killed_server_and_end_with_a_stopped_one(tmp_path):
    with serving(tmp_path, PROCS="1") as server:
        children = tree(server.process.pid)
        assert len(children) == 2
        assert f"(EngineCore pid={children[0].pid})" in server.text()
        server.process.kill()
        server.process.wait(5)
        assert all(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
        os.killpg(server.process.pid, signal.SIGTERM)
        wait_gone(children)
    with serving(tmp_path, PROCS="1") as server:
        children = tree(server.process.pid)
        server.process.terminate()
        assert server.process.wait(5) == 0
        wait_gone(children)


def test_a_killed_engine_process_takes_the_server_along_with_code_0(tmp_path):
    with serving(tmp_path, PROCS="1") as server:
        tree(server.process.pid)[0].kill()
        assert server.process.wait(5) == 0
        assert "EngineDeadError" in server.text()
