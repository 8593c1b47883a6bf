"""Processor time of the client's own code for a chunk and for a request, without sockets; versions measured in turn.

    python benchmarks/client/hot_path.py [--against OTHER_stream.py] [--rounds 30]

Answers of 200 tokens, shaped as vLLM's and read one chunk at a time, are fed to a connection. Two lengths of answer
separate the cost of a chunk from that of a request. `parser` is the floor: httptools with a counter behind it, no time
taken and nothing kept. The arms run in turn within each round, and ratios are taken within rounds, so that a busy host
disturbs all alike. `git show REVISION:autotune/load/stream.py > /tmp/old.py` gives an OTHER to compare with.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from time import process_time
from types import ModuleType
from typing import Any

import httptools

from autotune.load import stream as ours
from autotune.load.wire import WireRequest

SHORT, LONG = 2, 202
REPEATS = 40
REQUEST = WireRequest(0, float("nan"), LONG, False, b"POST /v1/completions HTTP/1.1\r\n\r\n")


def answer(tokens: int) -> list[bytes]:
    """What the reads of one answer hold: head, one HTTP chunk a token, usage and the end."""

    def framed(event: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(event), event)

    def event(text: str, finish: str | None = None) -> bytes:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
        body = {
            "id": "cmpl-0123456789abcdef0123456789abcdef", "object": "text_completion", "created": 1764456789,
            "model": "HuggingFaceTB/SmolLM2-135M", "choices": [{**choice, "token_ids": None}], "usage": None,
        }  # fmt: skip
        return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"

    usage = {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": tokens + 10}
    last = b"data: " + json.dumps({"id": "cmpl-0", "choices": [], "usage": usage}).encode() + b"\n\n"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    reads = [framed(event(" the")) for _ in range(tokens - 1)] + [framed(event(" end", "length"))]
    reads[0] = head + reads[0]
    return [*reads, framed(last) + framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"]


class Owner:
    """Takes what a connection reports."""

    def __init__(self) -> None:
        self.done = 0

    def on_first_token(self, stream: object) -> None:
        pass

    def on_done(self, stream: Any, status: float, error: str) -> None:
        assert status == 0.0, error
        self.done += 1
        stream.record(status, -1.0)
        stream.request = None

    def on_lost(self, stream: object) -> None:
        pass


class Transport:
    """Swallows what is sent."""

    def write(self, data: bytes) -> None:
        pass


def connection(module: ModuleType) -> Callable[[list[bytes]], None]:
    """Plays answers to one connection of a version of the client."""
    owner = Owner()
    stream = module.Stream(owner)
    stream.connection_made(Transport())

    def play(reads: list[bytes]) -> None:
        stream.send(REQUEST, float("nan"))
        receive = stream.data_received
        for data in reads:
            receive(data)
        assert stream.usage[1] > 0

    return play


class Counter:
    def __init__(self) -> None:
        self.bodies = 0
        self.parser = httptools.HttpResponseParser(self)

    def on_body(self, body: bytes) -> None:
        self.bodies += 1

    def play(self, reads: list[bytes]) -> None:
        feed = self.parser.feed_data
        for data in reads:
            feed(data)


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("other_stream", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["other_stream"] = module
    spec.loader.exec_module(module)
    return module


def cost(play: Callable[[list[bytes]], None]) -> tuple[float, float]:
    """Microseconds of processor time for a chunk and for a request."""
    times = []
    for tokens in (SHORT, LONG):
        reads = answer(tokens)
        count = REPEATS * (20 if tokens == SHORT else 1)
        begin = process_time()
        for _ in range(count):
            play(reads)
        times.append((process_time() - begin) / count * 1e6)
    chunk = (times[1] - times[0]) / (LONG - SHORT)
    return chunk, times[0] - SHORT * chunk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another version of autotune/load/stream.py")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    arms = {"parser": Counter().play, "ours": connection(ours)}
    if options.against:
        arms["other"] = connection(load(options.against))
    gc.disable()
    rounds = [{name: cost(play) for name, play in arms.items()} for _ in range(options.rounds)]
    for name in arms:
        chunk = statistics.median(one[name][0] for one in rounds)
        request = statistics.median(one[name][1] for one in rounds)
        line = f"{name:>7}: {chunk:5.2f} us a chunk, {request:6.1f} us a request"
        if name != "ours":
            ratios = sorted(one["ours"][0] / one[name][0] for one in rounds)
            low, middle, high = (ratios[round(q * (len(ratios) - 1))] for q in (0.1, 0.5, 0.9))
            line += f"; ours takes {middle:.2f} of it a chunk (80 % of rounds: {low:.2f} to {high:.2f})"
        print(line)


if __name__ == "__main__":
    main()
