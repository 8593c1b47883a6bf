"""Ratios of prefill to decode engines on simulated GPUs, in virtual time: exact, whatever this machine does meanwhile.

    python -m benchmarks.split.ratios > table.md

The engines are the simulator's, the router's decisions the real ones (`autotune.engine.dispatching`), and the way of
the KV cache takes what `autotune.simulator.handover` says. The router's own time and the sender's memory are left out.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from autotune.engine.dispatching import Burden, Place, Route, RouterSettings, route
from autotune.simulator.config import resolve
from autotune.simulator.core import percentile
from autotune.simulator.engine import EngineCore
from autotune.simulator.frontend import Frontend
from autotune.simulator.handover import transfer_seconds
from autotune.simulator.memory import plan
from autotune.simulator.scheduler import Request

GPUS = 4
MODEL, CARD = "llama-3.1-8b", "h100"
LONGEST = 16384


@dataclass(frozen=True)
class Load:
    """Poisson arrivals; a share of the prompts is long, the others short."""

    name: str
    rate: float
    long: int
    short: int
    share_long: float
    output: int
    seconds: float = 60.0

    def requests(self, seed: int) -> Iterator[tuple[float, int]]:
        """Arrival in seconds and tokens of the prompt."""
        rng, at = random.Random(seed), 0.0
        while (at := at + rng.expovariate(self.rate)) < self.seconds:
            yield at, self.long if rng.random() < self.share_long else self.short


LOADS = (
    Load("4,096 in, 256 out", 8.0, 4096, 4096, 1.0, 256),
    Load("half 8,192, half 256 in, 256 out", 8.0, 8192, 256, 0.5, 256),
    Load("1,024 in, 512 out", 24.0, 1024, 1024, 1.0, 512),
)


@dataclass
class Served:
    """One request as its client sees it; seconds."""

    sent: float
    prompt: int
    route: Route
    times: list[float] = field(default_factory=list)


class Fleet:
    """Several engines behind the router's rules, driven by one queue of events."""

    def __init__(self, prefill: int, transfer: bool, threshold: int) -> None:
        roles = ["prefill"] * prefill + ["decode" if prefill else "replica"] * (GPUS - prefill)
        places = tuple(Place(f"{role}-{index}", role, "") for index, role in enumerate(roles))
        self.settings = resolve({"model": MODEL, "max_model_len": LONGEST}, CARD, 1)
        self.router = RouterSettings(places, threshold, transfer)
        self.burden = Burden()
        self.cores = {place.name: EngineCore(self.settings, plan(self.settings)) for place in places}
        self.fronts = {place.name: Frontend() for place in places}
        self.busy = dict.fromkeys(self.cores, False)
        self.queue: list[tuple[float, int, str, object]] = []
        self.served: dict[int, Served] = {}
        self.serial = 0

    def push(self, at: float, place: str, what: object) -> None:
        self.serial += 1
        heapq.heappush(self.queue, (at, self.serial, place, what))

    def run(self, load: Load, seed: int) -> list[Served]:
        """Send everything and wait for the last answer."""
        for at, tokens in load.requests(seed):
            self.push(at, "", tokens)
        while self.queue:
            now, _, place, what = heapq.heappop(self.queue)
            if isinstance(what, int):
                self.arrive(now, what, load.output)
            elif isinstance(what, Request):
                self.cores[place].scheduler.add(what)
                self.kick(place, now)
            else:
                self.ended(place, now, load.output)
        return list(self.served.values())

    def arrive(self, now: float, tokens: int, output: int) -> None:
        found = route(self.router, self.burden, {"max_tokens": output}, tokens)
        self.serial += 1
        self.served[self.serial] = Served(now, tokens, found)
        first = found.prefill or found.answer
        self.burden.take(first, tokens)
        request = Request(self.serial, tokens, 1 if found.prefill else output, now)
        self.push(self.fronts[first.name].admit(now), first.name, request)

    def kick(self, place: str, now: float) -> None:
        if not self.busy[place] and (end := self.cores[place].start(now)) is not None:
            self.busy[place] = True
            self.push(end, place, None)

    def ended(self, place: str, now: float, output: int) -> None:
        handed = self.cores[place].finish(now)
        self.busy[place] = False
        at = self.fronts[place].deliver(now, sum(gain for _, gain in handed)) if handed else now
        for request, gain in handed:
            self.hand_out(place, at, request, gain, output)
        self.kick(place, now)

    def hand_out(self, place: str, at: float, request: Request, gain: int, output: int) -> None:
        served = self.served[request.id]
        found = served.route
        if found.prefill is not None and place == found.prefill.name:
            self.burden.done(found.prefill, served.prompt)
            self.burden.take(found.answer, 0)
            second = Request(request.id, served.prompt, output, at, received=served.prompt - 1)
            admitted = self.fronts[found.answer.name].admit(at)
            self.push(admitted + transfer_seconds(self.settings, served.prompt), found.answer.name, second)
            return
        served.times += [at] * gain
        if request.done:
            self.burden.done(found.answer, 0 if found.prefill else served.prompt)


def row(load: Load, prefill: int, transfer: bool, seeds: Sequence[int]) -> str:
    """One line of the table: means over the seeds of each run's percentiles."""
    ttft, itl, worst, rate = [], [], [], []
    for seed in seeds:
        served = Fleet(prefill, transfer, 512).run(load, seed)
        gaps = [b - a for one in served for a, b in zip(one.times, one.times[1:], strict=False) if b > a]
        ttft.append(percentile([one.times[0] - one.sent for one in served], 95))
        itl.append(percentile(gaps, 95))
        worst.append(percentile(gaps, 99))
        end = max(one.times[-1] for one in served)
        rate.append(sum(len(one.times) for one in served) / end / GPUS)
    name = f"{prefill} prefill, {GPUS - prefill} decode" if prefill else f"{GPUS} replicas"
    how = "–" if not prefill else "KV cache handed on" if transfer else "by length"

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    figures = f"{1e3 * mean(ttft):,.0f} | {1e3 * mean(itl):.1f} | {1e3 * mean(worst):.1f} | {mean(rate):,.0f}"
    return f"| {load.name}, {load.rate:g}/s | {name} | {how} | {figures} |"


def main() -> None:
    """Print the table."""
    print("| load | engines | split | TTFT p95 ms | ITL p95 ms | ITL p99 ms | output tok/s per GPU |")
    print("|---|---|---|---|---|---|---|")
    for load in LOADS:
        for prefill, transfer in ((0, False), (1, True), (2, True), (3, True), (1, False), (2, False)):
            if not transfer and prefill and load.long == load.short:
                continue  # all prompts are alike: by length they would all go to one side
            print(row(load, prefill, transfer, (1, 2, 3)), flush=True)


if __name__ == "__main__":
    main()
