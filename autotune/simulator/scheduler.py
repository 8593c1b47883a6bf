"""vLLM's V1 scheduler: one queue of running and one of waiting requests, one token budget a step.

Running requests come first, each with one token (decode) or the next chunk of its prompt; what is left of
``max_num_batched_tokens`` admits waiting ones, up to ``max_num_seqs``. When no KV block is left the last running
request is preempted and computed again later. As in vLLM, a request's position advances when it is scheduled, not
when the step ends, so that the next step can be scheduled while the present one runs (async scheduling).
"""

from __future__ import annotations

import random
from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from .blocks import BlockPool, Holding, block_hashes
from .config import EngineSettings

_ACCEPTANCE = 0.65
"""Chance that one more proposed token is accepted (speculative decoding); typical of a good draft."""


@dataclass(eq=False, slots=True)
class Request:
    """One request on its way through the engine. Times are simulated seconds."""

    id: int
    prompt_len: int
    output_len: int
    arrival_s: float = 0.0
    tokens: Sequence[int] | None = None
    """Prompt token ids, needed only for the prefix cache."""
    priority: int = 0
    prompt_logprobs: bool = False
    computed: int = 0
    produced: int = 0
    """Output tokens of all scheduled steps, those still running included."""
    emitted: int = 0
    cached_tokens: int = 0
    received: int = 0
    """Prompt tokens whose KV another engine has sent; they are computed again only after a preemption."""
    preemptions: int = 0
    scheduled_s: float = -1.0
    first_token_s: float = -1.0
    last_token_s: float = -1.0
    holding: Holding = field(default_factory=Holding)
    hashes: list[int] = field(default_factory=list)
    aborted: bool = False

    @property
    def target(self) -> int:
        """Tokens whose KV is needed before the next output token."""
        return self.prompt_len + self.produced

    @property
    def done(self) -> bool:
        """All output tokens have been given out."""
        return self.emitted >= self.output_len


@dataclass(slots=True)
class Batch:
    """One step: who computes how much. ``gains`` are the output tokens each request gets at its end."""

    gains: list[tuple[Request, int]] = field(default_factory=list)
    tokens: int = 0
    decode_tokens: int = 0
    decode_context: int = 0
    prefill: list[tuple[int, int]] = field(default_factory=list)
    """(first position, length) of every prompt chunk."""
    requests: int = 0
    prompt_logits: int = 0
    """The longest chunk whose prompt log-probabilities are wanted."""

    @property
    def samples(self) -> int:
        """Requests that sample a token."""
        return len(self.gains)


@dataclass
class SchedulerCounters:
    """Running totals, named as in vLLM's metrics."""

    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    received_tokens: int = 0
    """Prompt tokens whose KV came from another engine."""
    prompt_tokens: int = 0
    steps: int = 0


class Scheduler:
    """Continuous batching with chunked prefill over one engine's KV blocks."""

    def __init__(self, settings: EngineSettings, blocks: int, seed: int = 0) -> None:
        self.settings = settings
        self.pool = BlockPool(blocks)
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.counters = SchedulerCounters()
        self.max_num_seqs = settings.max_num_seqs
        self.max_num_batched_tokens = settings.max_num_batched_tokens
        self.long_prefill_token_threshold = settings.long_prefill_token_threshold
        self._size = settings.block_size
        self._by_priority = settings.scheduling_policy == "priority"
        self._speculative = settings.speculative_tokens
        self._random = random.Random(seed)

    @property
    def idle(self) -> bool:
        """Nothing to compute."""
        return not self.running and not self.waiting

    def add(self, request: Request) -> None:
        """Queue a request."""
        if self.settings.prefix_caching and request.tokens is not None and not request.hashes:
            request.hashes = block_hashes(request.tokens, self._size)
        self._queue(request, front=False)

    def abort(self, request: Request) -> None:
        """Forget a request whose client has gone."""
        request.aborted = True
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        self.pool.release(request.holding)

    def schedule(self, now: float) -> Batch | None:
        """The next step, or None when no request can compute anything."""
        batch = Batch()
        budget = self.max_num_batched_tokens
        before = self.counters.preemptions
        budget = self._schedule_running(batch, budget)
        if self.counters.preemptions == before:
            self._schedule_waiting(batch, budget, now)
        if not batch.requests:
            return None
        self.counters.steps += 1
        return batch

    def complete(self, batch: Batch, now: float) -> list[tuple[Request, int]]:
        """End a step: hand out its tokens and free finished requests. Aborted requests are left out."""
        handed: list[tuple[Request, int]] = []
        finished = False
        for request, gain in batch.gains:
            if request.aborted:
                continue
            request.emitted += gain
            if request.first_token_s < 0:
                request.first_token_s = now
                self.counters.prompt_tokens += request.prompt_len
            request.last_token_s = now
            if request.done:
                finished = True
                self.pool.release(request.holding)
            handed.append((request, gain))
        if finished:
            self.running = [request for request in self.running if not request.done]
        return handed

    def _queue(self, request: Request, front: bool) -> None:
        if self._by_priority:
            ordered = list(self.waiting)
            insort(ordered, request, key=lambda r: (r.priority, r.arrival_s, r.id))
            self.waiting = deque(ordered)
        elif front:
            self.waiting.appendleft(request)
        else:
            self.waiting.append(request)

    def _chunk(self, request: Request, budget: int) -> int:
        """Tokens to compute next; 0 when the request has to wait."""
        wanted = request.target - request.computed
        limit = self.long_prefill_token_threshold
        if limit and wanted > limit:
            wanted = limit
        if wanted > budget:
            return budget if self.settings.chunked_prefill else 0
        return wanted

    def _schedule_running(self, batch: Batch, budget: int) -> int:
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            if request.produced >= request.output_len and request.computed >= request.prompt_len:
                index += 1  # its last token is being computed by the step that runs now
                continue
            chunk = self._chunk(request, budget)
            if chunk <= 0:
                index += 1
                continue
            if not self._room(request, chunk, index):
                break
            budget -= self._place(batch, request, chunk)
            index += 1
        return budget

    def _room(self, request: Request, chunk: int, index: int) -> bool:
        """Get the blocks for a chunk, preempting from the end of the running list; False when itself was the last."""
        need = -(-(request.computed + chunk + self._speculative) // self._size) - request.holding.count
        while need > 0 and not self.pool.allocate(request.holding, need):
            later = self.running[index + 1 :]
            if self._by_priority and later:
                victim = max(later, key=lambda r: (r.priority, r.arrival_s, r.id))
            else:
                victim = self.running[-1]
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self.pool.release(request.holding)
        request.computed = request.received = 0
        request.preemptions += 1
        self.counters.preemptions += 1
        self._queue(request, front=True)

    def _schedule_waiting(self, batch: Batch, budget: int, now: float) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            hits = self._cached_blocks(request)
            request.computed = max(hits * self._size, request.received)
            chunk = self._chunk(request, budget)
            blocks = -(-(request.computed + chunk + self._speculative) // self._size) - hits
            if chunk <= 0 or not self.pool.fits(request.hashes[:hits], blocks):
                request.computed = 0
                break
            self.waiting.popleft()
            self.pool.share(request.holding, request.hashes[:hits])
            self.pool.allocate(request.holding, blocks)
            if request.scheduled_s < 0:
                request.scheduled_s = now
                request.cached_tokens = request.computed
                self.counters.prefix_hits += hits * self._size
                self.counters.received_tokens += max(0, request.received - hits * self._size)
                self.counters.prefix_queries += request.prompt_len if request.hashes else 0
            self.running.append(request)
            budget -= self._place(batch, request, chunk)

    def _cached_blocks(self, request: Request) -> int:
        """Leading prompt blocks in the cache; the last prompt token is always computed, to have its output."""
        if not request.hashes:
            return 0
        usable = (request.target - 1) // self._size
        return self.pool.find(request.hashes[:usable])

    def _place(self, batch: Batch, request: Request, chunk: int) -> int:
        """Add a chunk to the step and advance the request. Returns the tokens it takes from the budget."""
        start = request.computed
        request.computed = start + chunk
        batch.requests += 1
        cost = chunk
        decodes = chunk == 1 and request.produced > 0 and start >= request.prompt_len
        if request.computed >= request.target:
            gain = self._gain(request) if decodes else 1
            cost = 1 + self._speculative if decodes else chunk
            request.computed += gain - 1
            request.produced += gain
            batch.gains.append((request, gain))
        if decodes:
            batch.decode_tokens += cost
            batch.decode_context += start
        else:
            batch.prefill.append((start, chunk))
            if request.prompt_logprobs:
                batch.prompt_logits = max(batch.prompt_logits, chunk)
            self._publish(request)
        batch.tokens += cost
        return cost

    def _gain(self, request: Request) -> int:
        gain = 1
        while gain <= self._speculative and self._random.random() < _ACCEPTANCE:
            gain += 1
        return min(gain, request.output_len - request.produced)

    def _publish(self, request: Request) -> None:
        """Make the prompt blocks that this step fills findable for others."""
        full = min(request.computed // self._size, len(request.hashes))
        for index in range(len(request.holding.shared), full):
            self.pool.register(request.holding, request.hashes[index])
