"""The simulator in virtual time, without a socket: ``simulate(config, workload) -> result``.

The same engine as behind the HTTP server, driven by an event queue. A closed loop sends the next request as soon as a
client has its predecessor's last token; an open loop sends at given times.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from .arguments import Flags
from .config import EngineSettings, resolve
from .engine import EngineCore
from .frontend import Frontend
from .memory import MemoryPlan, plan
from .scheduler import Request

_CLIENT_S = 1.5e-3
"""From a client's last token to its next request on the wire (a Python load client on the same host)."""


@dataclass(frozen=True)
class SimulatedRequest:
    """What to send: lengths in tokens; token ids only where the prefix cache matters."""

    prompt_len: int
    output_len: int
    tokens: Sequence[int] | None = None
    arrival_s: float = 0.0
    """Used by an open loop only."""


@dataclass(frozen=True)
class Workload:
    """Requests in order, and how they arrive: closed loop at ``concurrency``, or at their arrival times (None)."""

    requests: tuple[SimulatedRequest, ...]
    concurrency: int | None = None

    @classmethod
    def closed_loop(cls, concurrency: int, count: int, prompt_len: int, output_len: int) -> Workload:
        """Equal requests, ``concurrency`` of them in flight."""
        return cls((SimulatedRequest(prompt_len, output_len),) * count, concurrency)


@dataclass(frozen=True)
class RequestTimes:
    """One finished request as its client saw it; simulated seconds since the start of the workload."""

    prompt_len: int
    output_len: int
    cached_tokens: int
    preemptions: int
    sent_s: float
    first_token_s: float
    finished_s: float

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.first_token_s - self.sent_s

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first; 0 for a single token."""
        return (self.finished_s - self.first_token_s) / (self.output_len - 1) if self.output_len > 1 else 0.0


@dataclass(frozen=True)
class SimulationResult:
    """All requests in the order they finished, and what the engine did."""

    requests: tuple[RequestTimes, ...]
    duration_s: float
    steps: int
    preemptions: int
    prefix_hit_tokens: int
    memory: MemoryPlan

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens of all requests over the duration."""
        return sum(request.output_len for request in self.requests) / self.duration_s

    @property
    def total_tokens_per_s(self) -> float:
        """Prompt and output tokens over the duration."""
        return sum(request.prompt_len + request.output_len for request in self.requests) / self.duration_s

    def ttft_percentile_s(self, percent: float) -> float:
        """Percentile of the time to first token (linear interpolation between ranks)."""
        return percentile([request.ttft_s for request in self.requests], percent)

    def tpot_percentile_s(self, percent: float) -> float:
        """Percentile of the time per output token."""
        return percentile([request.tpot_s for request in self.requests], percent)


def percentile(values: Sequence[float], percent: float) -> float:
    """Percentile with linear interpolation, as numpy's default."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def simulate(
    config: EngineSettings | Flags,
    workload: Workload,
    *,
    card: str = "h200",
    gpus: int = 1,
    noise: float = 0.0,
    seed: int = 0,
) -> SimulationResult:
    """Run a workload in virtual time.

    :param config: resolved settings, or vLLM's options by name (``{"model": "glm-4-9b", "max_num_seqs": 128}``);
        ``card`` and ``gpus`` are used with options only.
    :raises ConfigRefusal, EngineFailure: when such an engine would not start.
    """
    settings = config if isinstance(config, EngineSettings) else resolve(config, card, gpus)
    return _Simulation(settings, workload, noise, seed).run()


class _Simulation:
    """The event queue: (time, serial, kind, engine, payload)."""

    def __init__(self, settings: EngineSettings, workload: Workload, noise: float, seed: int) -> None:
        self.memory = plan(settings)
        self.frontend = Frontend(settings.api_servers)
        self.engines = [EngineCore(settings, self.memory, noise, seed + rank) for rank in range(settings.data_parallel)]
        self.busy = [False] * len(self.engines)
        self.workload = workload
        self.queue: list[tuple[float, int, str, int, Request | None]] = []
        self.serial = 0
        self.loads = [0] * len(self.engines)
        self.engine_of: dict[int, int] = {}
        self.first: dict[int, float] = {}
        self.finished: list[RequestTimes] = []
        self.next_request = 0

    def run(self) -> SimulationResult:
        """Send, step and deliver until every request is finished.

        :raises ValueError: no requests, one longer than the engine accepts, or arrivals out of order.
        :raises EngineFailure: the engine runs out of memory under this load.
        """
        self._check()
        total = len(self.workload.requests)
        concurrency = self.workload.concurrency
        for spec in self.workload.requests[:concurrency]:
            self._push(0.0 if concurrency else spec.arrival_s, "send")
        while len(self.finished) < total:
            now, _, kind, engine, request = heapq.heappop(self.queue)
            if kind == "arrive" and request is not None:
                self.engines[engine].scheduler.add(request)
                self._kick(engine, now)
            elif kind == "step":
                self._step_ended(engine, now)
            else:
                self._send(now)
        counters = [engine.scheduler.counters for engine in self.engines]
        return SimulationResult(
            tuple(self.finished),
            max(request.finished_s for request in self.finished),
            sum(counter.steps for counter in counters),
            sum(counter.preemptions for counter in counters),
            sum(counter.prefix_hits for counter in counters),
            self.memory,
        )

    def _check(self) -> None:
        requests, limit = self.workload.requests, self.engines[0].settings.max_model_len
        if not requests:
            raise ValueError("a workload needs at least one request")
        if any(r.prompt_len < 1 or r.output_len < 1 or r.prompt_len + r.output_len > limit for r in requests):
            raise ValueError(f"every request needs 1 or more tokens each way and {limit} at most together")
        if self.workload.concurrency is None and any(b.arrival_s < a.arrival_s for a, b in pairwise(requests)):
            raise ValueError("arrivals must be in order")

    def _push(self, time: float, kind: str, engine: int = 0, request: Request | None = None) -> None:
        self.serial += 1
        heapq.heappush(self.queue, (time, self.serial, kind, engine, request))

    def _send(self, now: float) -> None:
        if self.next_request >= len(self.workload.requests):
            return
        spec = self.workload.requests[self.next_request]
        request = Request(self.next_request, spec.prompt_len, spec.output_len, now, spec.tokens)
        self.next_request += 1
        engine = self.loads.index(min(self.loads))
        self.loads[engine] += 1
        self.engine_of[request.id] = engine
        self._push(self.frontend.admit(now), "arrive", engine, request)

    def _kick(self, engine: int, now: float) -> None:
        if not self.busy[engine]:
            end = self.engines[engine].start(now)
            if end is not None:
                self.busy[engine] = True
                self._push(end, "step", engine)

    def _step_ended(self, engine: int, now: float) -> None:
        handed = self.engines[engine].finish(now)
        self.busy[engine] = False
        self._kick(engine, now)
        if not handed:
            return
        delivered = self.frontend.deliver(now, sum(gain for _, gain in handed))
        for request, _ in handed:
            self.first.setdefault(request.id, delivered)
            if request.done:
                self._finish(request, delivered)

    def _finish(self, request: Request, delivered: float) -> None:
        self.finished.append(
            RequestTimes(
                request.prompt_len,
                request.output_len,
                request.cached_tokens,
                request.preemptions,
                request.arrival_s,
                self.first.pop(request.id),
                delivered,
            )
        )
        self.loads[self.engine_of.pop(request.id)] -= 1
        if self.workload.concurrency:
            self._push(delivered + _CLIENT_S, "send")
