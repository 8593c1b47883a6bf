"""A simulated server as a process of its own, and what tests need to talk to it."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

READY_S = 20.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def request(self, path: str, body: object = None, key: str | None = None) -> tuple[int, bytes]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def json(self, path: str, body: object = None, key: str | None = None) -> dict:
        status, content = self.request(path, body, key)
        assert status == 200, content
        return json.loads(content)

    def events(self, path: str, body: dict) -> list[dict]:
        status, content = self.request(path, {**body, "stream": True})
        assert status == 200, content
        lines = [line for line in content.decode().split("\n\n") if line]
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]

    def text(self) -> str:
        return self.log.read_text()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.text()
            try:
                if self.request("/health")[0] == 200:
                    return
            except OSError:
                time.sleep(0.02)
        raise AssertionError(f"not ready after {READY_S} s: {self.text()}")


@contextlib.contextmanager
def serving(
    tmp_path: Path, *arguments: str, ready: bool = True, model: str = "qwen3-8b", **simulation: str
) -> Iterator[Server]:
    port = free_port()
    log = tmp_path / f"server-{port}.log"
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("VLLM_", "AUTOTUNE_SIM_"))}
    environ |= {"AUTOTUNE_SIM_STARTUP": "0", "AUTOTUNE_SIM_SPEED": "20"}
    environ |= {key if key.startswith("VLLM_") else f"AUTOTUNE_SIM_{key}": value for key, value in simulation.items()}
    command = [sys.executable, "-m", "autotune.simulator", "serve", model, "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, *arguments], stdout=file, stderr=file, env=environ, start_new_session=True
        )
    server = Server(process, port, log)
    try:
        if ready:
            server.wait_ready()
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One well-behaved server for the tests of a module."""
    with serving(tmp_path_factory.mktemp("server"), "--served-model-name", "m", "--max-model-len", "4096") as started:
        yield started
