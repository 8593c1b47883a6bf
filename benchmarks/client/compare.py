"""Load clients beside each other on one core: processor time a chunk, error of the reported TTFT, start-up.

    python benchmarks/client/compare.py [--rounds 3] [--only ours,vllm] [--results FOLDER] [--waves 3]

The server (mock_server.c) runs on one core, the client with all its children on another; 200 tokens a request, closed
loop, three waves. The server knows when its kernel had a request and when it wrote the first token, so a client's error
is its reported figure minus the server's. The other clients are installed by peers.py at pinned versions; one that
cannot be had is left out with a note. guidellm and aiperf, which need minutes, run in the first round only. RESULTS.md
and results.json are written beside this file.
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

import autotune

sys.path.insert(0, str(Path(__file__).parent))

import peers
from mock_runner import Mock, built, running_mock
from table import FLOOR, Row, markdown

HERE = Path(__file__).parent
TOKENS = 200
TTFT_MS = 50.0
LOADS = {"16": (16, 5.0), "64": (64, 5.0), "256": (256, 10.0), "1024": (1024, 25.0)}
"""Streams and milliseconds a step."""
FEW = 64
"""Below this number of streams the run has twice the waves: processor time is counted in steps of 10 ms."""
TIMEOUT = 300
SLOW = ("guidellm", "aiperf")
EVERY_GAP = "ours, every gap"
"""With `itl_share: 1`, so that every chunk is read when it comes, as the others read them."""


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
            python, "-m", "guidellm", "run",
            "--backend", f"kind=openai_http,target={work.mock.url},model=mock,request_format=/v1/completions",
            "--profile", f"kind=concurrent,streams={work.streams}",
            "--constraint", f"kind=max_requests,count={work.requests}",
            "--data", f"kind=synthetic_text,prompt_tokens=10,output_tokens={TOKENS}",
            "--tokenizer", f"kind=huggingface_auto,model={work.tokenizer}",
            "--output", f"kind=json,path={work.folder / 'guidellm.json'}", "--disable-console",
        ]  # fmt: skip

    def read(work: Work, _: str) -> tuple[float, float]:
        body = json.loads((work.folder / "guidellm.json").read_text())
        found = body["benchmarks"][0]["metrics"]["time_to_first_token_ms"]["successful"]["percentiles"]
        return float(found["p50"]), float(found["p99"])

    return Client("guidellm", command, read, {"GUIDELLM__MAX_WORKER_PROCESSES": "1", "HF_HUB_OFFLINE": "1"})


HUB_NAME = "local/tokenizer"


def _hub_cache(folder: Path, tokenizer: str) -> str:
    """A cache of the Hugging Face hub that holds the tokenizer: aiperf takes names and no folders."""
    kept = folder / "hub" / ("models--" + HUB_NAME.replace("/", "--"))
    snapshot = kept / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True, exist_ok=True)
    (kept / "refs").mkdir(exist_ok=True)
    (kept / "refs" / "main").write_text("0" * 40)
    for file in Path(tokenizer).iterdir():
        if not (snapshot / file.name).exists():
            (snapshot / file.name).symlink_to(file.resolve())
    return str(folder / "hub")


def _aiperf(python: str, cache: str) -> Client:
    def command(work: Work) -> list[str]:
        return [
            str(Path(python).with_name("aiperf")), "profile", "--model", "mock", "--url", work.mock.url,
            "--endpoint-type", "completions", "--streaming", "--concurrency", str(work.streams),
            "--request-count", str(work.requests), "--synthetic-input-tokens-mean", "10",
            "--output-tokens-mean", str(TOKENS), "--tokenizer", HUB_NAME, "--use-server-token-count",
            "--artifact-dir", str(work.folder / "aiperf"), "--ui", "none", "--workers-max", "1",
        ]  # fmt: skip

    def read(work: Work, _: str) -> tuple[float, float]:
        file = next((work.folder / "aiperf").rglob("profile_export_aiperf.json"))
        found = json.loads(file.read_text())["time_to_first_token"]
        return float(found["p50"]), float(found["p99"])

    return Client("aiperf", command, read, {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": cache})


def find_clients(options: argparse.Namespace, folder: Path) -> list[Client]:
    """The clients that can run here, ours first."""

    def ours(work: Work) -> list[str]:
        return [sys.executable, str(HERE / "ours.py"), work.mock.url, str(work.streams), str(TOKENS),
                str(work.requests)]  # fmt: skip

    def floor(work: Work) -> list[str]:
        port = work.mock.url.rpartition(":")[2]
        return [str(floor_program), port, str(work.streams), str(TOKENS), str(work.requests)]

    floor_program = built("floor", folder)
    clients = [Client("ours", ours, _read_ours), Client(EVERY_GAP, lambda work: [*ours(work), "1"], _read_ours)]
    if shutil.which("setpriv") and os.geteuid() == 0:
        # Without the privilege our process runs in the ordinary class, as the others do.
        plain = ["setpriv", "--bounding-set=-sys_nice"]
        clients.append(Client("ours, ordinary class", lambda work: plain + ours(work), _read_ours))
    clients.append(Client(FLOOR, floor, _read_ours))
    found = peers.install_all()
    engine = peers.ENGINE / "bin" / "python"
    if engine.exists():
        quiet = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
        main = [str(engine), "-m", "vllm.entrypoints.cli.main"]
        clients.append(Client("vllm", lambda work: main + _vllm_arguments(work), _read_vllm, quiet))
    else:
        print("note: vllm is left out; `make engine` sets the CPU engine up", file=sys.stderr)
    if "vllm-rs" in found:
        program = str(found["vllm-rs"])
        clients.append(Client("vllm-rs", lambda work: [program, *_vllm_arguments(work)], _read_vllm))
    if "guidellm" in found:
        clients.append(_guidellm(str(found["guidellm"])))
    if "aiperf" in found:
        clients.append(_aiperf(str(found["aiperf"]), _hub_cache(folder, options.tokenizer)))
    wanted = options.only.split(",") if options.only else [client.name for client in clients]
    return [client for client in clients if client.name.partition(",")[0] in wanted or client.name == FLOOR]


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


def measure(
    client: Client, load: str, mock: Mock, folder: Path, tokenizer: str, core: int | None, waves: int
) -> Row | str:
    """One run; a sentence when it failed."""
    streams, _ = LOADS[load]
    work = Work(mock, streams, (2 if streams < FEW else 1) * waves * streams, folder, tokenizer)
    mock.reset()
    pin = ["taskset", "-c", str(core)] if core is not None and shutil.which("taskset") else []
    with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="repeats, clients in turn; the slow ones run once")
    parser.add_argument("--loads", default=",".join(LOADS), help="streams, such as 16,64,256,1024")
    parser.add_argument("--waves", type=int, default=3, help="requests a stream")
    parser.add_argument("--only", help="clients to run, such as ours,vllm")
    parser.add_argument("--tokenizer", default=str(Path.home() / ".cache/autotune/models/smollm2-135m"))
    parser.add_argument("--results", type=Path, default=HERE, help="folder for RESULTS.md and results.json")
    options = parser.parse_args()
    loads = [item for item in options.loads.split(",") if item in LOADS]
    cores = sorted(os.sched_getaffinity(0))
    client_core, server_core = (cores[0], cores[1]) if len(cores) > 1 else (None, None)
    rows: list[Row] = []
    busy = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="client-bench-") as text:
        folder = Path(text)
        clients = find_clients(options, folder)
        for number, load in ((number, load) for number in range(options.rounds) for load in loads):
            with running_mock(TTFT_MS, LOADS[load][1], core=server_core) as mock:
                for client in clients:
                    if number and client.name in SLOW:
                        continue
                    found = measure(client, load, mock, folder, options.tokenizer, client_core, options.waves)
                    if isinstance(found, str):
                        print(f"note: {client.name} at {load}: {found}", file=sys.stderr)
                        continue
                    rows.append(found)
                    print(found, file=sys.stderr)
    versions = {
        "ours": autotune.__version__,
        EVERY_GAP: autotune.__version__,
        "ours, ordinary class": autotune.__version__,
        "vllm": peers.VLLM_RS,
        "vllm-rs": peers.VLLM_RS,
    } | peers.pinned()
    page = markdown(rows, loads, versions, f"{busy:.1f} before the first run, {os.getloadavg()[0]:.1f} after the last")
    print(page)
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "RESULTS.md").write_text(page)
    (options.results / "results.json").write_text(json.dumps([vars(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
