"""The engine on the wall clock: steps end when they would, divided by the speed factor.

A request is submitted with a callback that is called once a step with the number of new tokens, at the time the API
server would have written them. Everything runs in one event loop; nothing here blocks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from .config import EngineSettings
from .engine import EngineCore
from .failures import EngineFailure
from .frontend import Frontend
from .handover import transfer_seconds
from .memory import MemoryPlan
from .metrics import EngineMetrics, EngineState
from .scheduler import Request

_CATCH_UP_STEPS = 16
_BACKLOG_S = 0.1  # wall seconds that steps may be behind; beyond it simulated time is lost
_LATE_S = 0.03  # wall seconds behind schedule from which a step counts as late

TokenCallback = Callable[[int, bool], None]
"""Called with the new tokens of a step and whether they are the last."""


class EngineDead(Exception):
    """The engine process has died; every request fails from now on."""


@dataclass(slots=True)
class _Client:
    request: Request
    tokens: TokenCallback
    failed: Callable[[Exception], None]
    engine: int
    last_s: float = -1.0


@dataclass(frozen=True)
class LoadFaults:
    """Numbers of requests at which a running engine breaks; 0 is never."""

    die_at_running: int = 0
    die_after_finished: int = 0
    hang_at_running: int = 0


class RealTimeEngine:
    """Engines (one for each data-parallel rank) behind one API server."""

    def __init__(
        self, settings: EngineSettings, memory: MemoryPlan, speed: float, noise: float, seed: int, faults: LoadFaults
    ) -> None:
        self.settings = settings
        self.metrics = EngineMetrics()
        self.memory = memory
        self.died: asyncio.Event = asyncio.Event()
        self.cause: EngineFailure | None = None
        self.cores = [EngineCore(settings, memory, noise, seed + rank) for rank in range(settings.data_parallel)]
        self._loop = asyncio.get_running_loop()
        self._origin = self._loop.time()
        self._speed = speed
        self._frontend = Frontend(settings.api_servers)
        self._clients: dict[int, _Client] = {}
        self._busy = [False] * len(self.cores)
        self._written = [0] * len(self.cores)
        self._next_id = 0
        self._finished = 0
        self._faults = faults
        self._due: deque[tuple[float, list[tuple[int, int, bool]]]] = deque()
        self.to_flush: list[Callable[[], None]] = []
        """Called once after all tokens that are due have been handed out: one write a stream, however many steps."""
        self.worst_lag_s = 0.0
        self.late_steps = 0

    def now(self) -> float:
        """Simulated seconds since the engine was ready."""
        return (self._loop.time() - self._origin) * self._speed

    @property
    def in_flight(self) -> int:
        """Requests accepted and not finished."""
        return len(self._clients)

    def submit(
        self,
        tokens: list[int],
        output_len: int,
        priority: int,
        prompt_logprobs: bool,
        on_tokens: TokenCallback,
        on_failure: Callable[[Exception], None],
        *,
        received: bool = False,
    ) -> int:
        """Send a request through the API server to the least loaded engine; returns its number.

        :param received: another engine has read the prompt and sends its KV cache first.

        :raises EngineDead: the engine has died before.
        """
        if self.died.is_set():
            raise EngineDead
        now = self.now()
        self._next_id += 1
        request = Request(self._next_id, len(tokens), output_len, now, tokens, priority, prompt_logprobs)
        moved = 0.0
        if received:
            request.received = len(tokens) - 1
            moved = transfer_seconds(self.settings, len(tokens))
        loads = [0] * len(self.cores)
        for client in self._clients.values():
            loads[client.engine] += 1
        engine = loads.index(min(loads))
        self._clients[request.id] = _Client(request, on_tokens, on_failure, engine)
        self._at(self._frontend.admit(now) + moved, self._arrive, request, engine)
        return request.id

    def abort(self, number: int) -> None:
        """The client has gone."""
        client = self._clients.pop(number, None)
        if client is not None and not client.request.done:
            self.cores[client.engine].scheduler.abort(client.request)
            self.metrics.success["abort"] += 1

    def reset_prefix_cache(self) -> None:
        """Forget all cached blocks that no request holds."""
        for core in self.cores:
            core.scheduler.pool.forget()

    def die(self) -> None:
        """Kill the engine: all requests fail, no step ends any more."""
        self.died.set()
        for client in list(self._clients.values()):
            client.failed(EngineDead())
        self._clients.clear()

    def states(self) -> list[EngineState]:
        """Gauges and totals of every engine."""
        states = []
        for rank, core in enumerate(self.cores):
            scheduler, counters = core.scheduler, core.scheduler.counters
            states.append(
                EngineState(
                    running=len(scheduler.running),
                    waiting=len(scheduler.waiting),
                    kv_usage=scheduler.pool.used / max(1, scheduler.pool.total),
                    preemptions=counters.preemptions,
                    prefix_queries=counters.prefix_queries,
                    prefix_hits=counters.prefix_hits,
                    prompt_tokens=counters.prompt_tokens,
                    generation_tokens=self._written[rank],
                    blocks=scheduler.pool.total,
                    received_tokens=counters.received_tokens,
                )
            )
        return states

    def _at(self, time: float, call: Callable[..., None], *arguments: object) -> None:
        self._loop.call_at(self._origin + time / self._speed, call, *arguments)

    def _arrive(self, request: Request, engine: int) -> None:
        if request.aborted or self.died.is_set():
            return
        self.cores[engine].scheduler.add(request)
        self._kick(engine, self.now())

    def _kick(self, engine: int, now: float) -> None:
        """Start a step when the engine is idle."""
        if not self._busy[engine] and not self.died.is_set():
            end = self._begin(engine, now)
            if end is not None:
                self._at(end, self._step_ended, engine, end)

    def _begin(self, engine: int, now: float) -> float | None:
        """Start a step; returns its end, or None when there is none (nothing to do, dead, or hanging by order)."""
        core = self.cores[engine]
        try:
            end = core.start(now)
        except EngineFailure as failure:
            self.cause = failure
            self.die()
            return None
        if end is None:
            return None
        self._busy[engine] = True
        running = len(core.scheduler.running)
        if self._faults.die_at_running and running >= self._faults.die_at_running:
            self.die()
            return None
        if self._faults.hang_at_running and running >= self._faults.hang_at_running:
            return None
        if core.running_step is not None:
            self.metrics.observe("iteration_tokens_total", core.running_step.tokens)
        return end

    def _step_ended(self, engine: int, end: float) -> None:
        """End a step and start the next. Steps that are due by now are made up for at once, so that lateness of the
        event loop neither adds up nor costs a wake-up for each of them."""
        for _ in range(_CATCH_UP_STEPS):
            if self.died.is_set():
                return
            handed = self.cores[engine].finish(end)
            self._busy[engine] = False
            if handed:
                delivered = self._frontend.deliver(end, sum(gain for _, gain in handed))
                self._due.append((delivered, [(request.id, gain, request.done) for request, gain in handed]))
                self._at(delivered, self._deliver_until, delivered)
            now = self.now()
            self._note_lag(now - end)
            following = self._begin(engine, max(end, now - _BACKLOG_S * self._speed))
            if following is None:
                return
            end = following
            if end > now:
                break
        self._at(end, self._step_ended, engine, end)

    def _note_lag(self, lag: float) -> None:
        wall = lag / self._speed
        self.worst_lag_s = max(self.worst_lag_s, wall)
        if wall > _LATE_S:
            self.late_steps += 1

    def _deliver_until(self, time: float) -> None:
        """Write what was due by ``time``: the time asked of the loop, whose timers may fire a millisecond early."""
        until = max(time, self.now())
        while self._due and self._due[0][0] <= until:
            delivered, outputs = self._due.popleft()
            self._deliver(outputs, delivered)
        flushes, self.to_flush = self.to_flush, []
        for flush in flushes:
            flush()

    def _deliver(self, outputs: list[tuple[int, int, bool]], now: float) -> None:
        for number, gain, done in outputs:
            client = self._clients.get(number)
            if client is None:
                continue
            if client.last_s < 0:
                self.metrics.observe("time_to_first_token_seconds", now - client.request.arrival_s)
            else:
                self.metrics.observe("inter_token_latency_seconds", (now - client.last_s) / gain, gain)
            client.last_s = now
            # As vLLM's API server counts them: when it has them in hand, which is after the engine has written them.
            self._written[client.engine] += gain
            if done:
                del self._clients[number]
                self._count(client.request, now)
            client.tokens(gain, done)

    def _count(self, request: Request, now: float) -> None:
        observe = self.metrics.observe
        observe("e2e_request_latency_seconds", now - request.arrival_s)
        observe("request_queue_time_seconds", max(0.0, request.scheduled_s - request.arrival_s))
        observe("request_prefill_time_seconds", request.first_token_s - request.scheduled_s)
        decode = request.last_token_s - request.first_token_s
        observe("request_decode_time_seconds", decode)
        observe("request_inference_time_seconds", request.last_token_s - request.scheduled_s)
        observe("request_time_per_output_token_seconds", decode / max(1, request.output_len - 1))
        observe("request_prompt_tokens", request.prompt_len)
        observe("request_generation_tokens", request.output_len)
        observe("request_num_preemptions", request.preemptions)
        observe("request_max_num_generation_tokens", request.output_len)
        observe("request_params_n", 1)
        observe("request_prefill_kv_computed_tokens", request.prompt_len - request.cached_tokens)
        self._finished += 1
        if self._faults.die_after_finished and self._finished >= self._faults.die_after_finished:
            self._loop.call_soon(self.die)
