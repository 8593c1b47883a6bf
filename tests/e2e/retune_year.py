"""The host of `test_retune_year`: a service with a clock of its own, an engine whose truth changes, and its users.

Run as `python retune_year.py serve FOLDER`, or by the study as `python retune_year.py engine FOLDER PORT NAME ARGS...`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from autotune.retune.service import Service, first_start
from autotune.retune.session import Session, opened
from autotune.study import open_study

LENGTHS = ("request_prompt_tokens", "request_generation_tokens")
EDGES = (8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, float("inf"))


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


BEGIN, END = at("2026-01-15"), at("2026-12-15")
UPGRADE, SHIFT, SICK, WELL, ILLEGAL = map(at, ("2026-03-15", "2026-06-15", "2026-08-15", "2026-10-15", "2026-11-15"))


@dataclass(frozen=True)
class Era:
    """A stretch of truth: speed of the card by `max_num_seqs`; 1 where it is not named, None where vLLM refuses it."""

    version: str
    prompt: int
    speeds: dict[int, float | None] = field(default_factory=dict)
    card: float = 1.0


def era(now: float) -> Era:
    if now < UPGRADE:
        return Era("0.32.0", 64)
    if now < SHIFT:
        return Era("0.33.0", 64, {8: 0.25})  # slower where it was best
    if now < ILLEGAL:
        return Era("0.33.0", 256, {4: 0.25}, 0.6 if SICK <= now < WELL else 1.0)
    return Era("0.34.0", 256, {8: None})


def clock_of(folder: Path) -> float:
    return float((folder / "clock").read_text())


def set_clock(folder: Path, now: float) -> None:
    partial_ = folder / "clock.new"
    partial_.write_text(repr(now))
    partial_.replace(folder / "clock")


class StoredClock:
    """A clock that jumps to what is waited for and goes on from there; a kill does not set it back."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._base, self._begun = folder, clock_of(folder), time.monotonic()

    def now(self) -> float:
        return self._base + time.monotonic() - self._begun

    async def sleep_until(self, moment: float) -> None:
        self._base, self._begun = max(moment, self.now()), time.monotonic()
        set_clock(self._folder, self._base)


async def serve(folder: Path) -> None:
    """What `autotune schedule` runs, on that clock, until the end of the year."""
    clock = StoredClock(folder)
    with opened(open_study(folder / "year.yaml")) as found:
        session = Session(found.study, found.spec, found.ledger, now=clock.now)
        say = partial(print, flush=True)
        for reason in await session.recover():
            say(reason)
        run = partial(session.run_scheduled, say=say)
        begin = partial(first_start, session.ledger)
        await Service(session.schedule, session.spec.budget.time, clock, run, begin, say).serve(END)


def engine(folder: Path, port: str, name: str, args: list[str]) -> None:
    """The simulator, as fast as the era says; refuses what the era refuses, in vLLM's words."""
    now = era(clock_of(folder))
    seqs = int(args[args.index("--max-num-seqs") + 1])
    speed = now.speeds.get(seqs, 1.0)
    if speed is None:
        print(f"vllm serve: error: argument --max-num-seqs: invalid value: {seqs}", file=sys.stderr)
        sys.exit(2)
    env = {**os.environ, "AUTOTUNE_SIM_SPEED": str(speed * now.card), "AUTOTUNE_SIM_STARTUP": "0",
           "AUTOTUNE_SIM_NOISE": "0.02"}  # fmt: skip
    words = [sys.executable, "-m", "autotune.simulator", "serve", "llama-3.1-8b", "--host", "127.0.0.1", "--port", port]
    os.execve(sys.executable, [*words, "--served-model-name", name, *args], env)


def users(folder: Path) -> ThreadingHTTPServer:
    """The production service: /version and the histograms of its users' requests, by the era."""
    counted: dict[tuple[str, float], int] = dict.fromkeys(itertools.product(LENGTHS, EDGES), 0)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            now = era(clock_of(folder))
            body = json.dumps({"version": now.version})
            if self.path == "/metrics":
                _count(counted, now)
                body = "".join(
                    f'vllm:{name}_bucket{{le="{edge if edge < 1e9 else "+Inf"}"}} {n}.0\n'
                    for (name, edge), n in counted.items()
                )
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: Any) -> None:
            """Silent."""

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


def _count(counted: dict[tuple[str, float], int], now: Era) -> None:
    """600 more requests: a fifth of half the usual length, two fifths of that, the others of twice as much."""
    for name, usual in zip(LENGTHS, (now.prompt, 16), strict=True):
        for length, requests in ((usual / 2, 120), (usual, 240), (2 * usual, 240)):
            for edge in EDGES:
                counted[name, edge] += requests if length <= edge else 0


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        asyncio.run(serve(Path(sys.argv[2])))
    else:
        engine(Path(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5:])
