"""Synthetic response surfaces of a serving engine: a roofline with queues, memory walls and noise.

They rank searches; they say nothing about the speed of a real engine. What is meant to be realistic is the shape:
cliffs (out of memory at start and under load), plateaus, interactions, conditional settings, settings that do nothing,
and a trade-off between throughput and time to first token. Two of the settings can be changed on a running engine; what
such an engine has allocated stays as it was started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Columns = Mapping[str, NDArray]


@dataclass(frozen=True)
class Card:
    """One GPU: memory in bytes, bandwidth in bytes/s, dense 16-bit FLOP/s, link bandwidth in bytes/s."""

    memory: float
    bandwidth: float
    flops: float
    link: float


H100 = Card(80e9, 3.35e12, 989e12, 400e9)
A100 = Card(80e9, 2.0e12, 312e12, 280e9)
H200 = Card(141e9, 4.8e12, 989e12, 400e9)


@dataclass(frozen=True)
class Surface:
    """A model on a machine under a load. Parameters in 1e9, lengths in tokens, rates per second, times in seconds."""

    name: str
    card: Card
    gpus: int
    total_b: float
    active_b: float
    expert_share: float
    layers: int
    kv_bytes: float
    concurrency: int
    prompt: float
    answer: float
    shared_prefix: float
    longest: int
    rate: float
    slo_s: float
    gate: float = 1.0
    held_out: bool = False


MOE8 = Surface("moe8", H100, 8, 100, 14, 0.9, 48, 196608, 768, 1400, 220, 0.30, 16384, 26.0, 0.11)
CHAT8 = replace(MOE8, name="chat8", concurrency=1024, prompt=400, answer=500, shared_prefix=0.2, rate=30.0, slo_s=0.06)
RAG8 = replace(
    MOE8, name="rag8", concurrency=256, prompt=6000, answer=150, shared_prefix=0.5, longest=32768, rate=5.0, slo_s=0.2
)
DENSE70 = Surface("dense70", H100, 8, 70, 70, 0.0, 80, 327680, 512, 1000, 250, 0.30, 16384, 10.0, 0.135)
DENSE1 = Surface("dense1", H100, 1, 8, 8, 0.0, 32, 131072, 256, 1100, 200, 0.25, 8192, 7.0, 0.062)
CRASH40 = Surface("crash40", A100, 4, 120, 12, 0.92, 40, 163840, 384, 900, 300, 0.25, 16384, 8.0, 0.15)
HELD_OUT = (
    Surface(
        "held-moe4-h200", H200, 4, 110, 20, 0.88, 44, 180224, 512, 2000, 350, 0.4, 32768, 9.0, 0.145, held_out=True
    ),
    Surface("held-dense32x2", A100, 2, 32, 32, 0.0, 64, 262144, 192, 700, 180, 0.15, 8192, 2.0, 0.33, held_out=True),
    Surface("held-long8", H200, 8, 70, 70, 0.0, 80, 327680, 96, 12000, 400, 0.6, 65536, 1.2, 0.5, held_out=True),
)
SURFACES = (MOE8, CHAT8, RAG8, DENSE70, DENSE1, CRASH40)
BY_NAME = {surface.name: surface for surface in (*SURFACES, *HELD_OUT)}

WEIGHT_BYTES = np.array([2.0, 1.04, 0.61])
WEIGHT_SPEED = np.array([1.0, 1.6, 0.85])
WEIGHT_LOSS = np.array([0.0, 0.35, 0.9])


@dataclass(frozen=True)
class Truth:
    """Noise-free figures per configuration. `failed`: 0 runs, 1 fails at its start, 2 dies under load."""

    throughput: Array
    ttft_s: Array
    loss: Array
    failed: NDArray[np.int64]

    def good(self, surface: Surface) -> NDArray[np.bool_]:
        return (self.failed == 0) & (self.loss <= surface.gate)


def evaluate(surface: Surface, asked: Columns, started: Columns | None = None) -> Truth:
    """Figures for columns of settings.

    Args:
        surface: the machine, model and load.
        asked: settings by name, arrays of equal length.
        started: what the engines were started with, where live settings were lowered since.
    """
    engine = _Engine(surface, asked, started if started is not None else asked)
    throughput = engine.throughput()
    ttft = engine.ttft()
    return Truth(throughput, ttft, engine.loss(), engine.failed())


class _Engine:
    """Intermediate figures of a set of configurations."""

    def __init__(self, surface: Surface, asked: Columns, started: Columns) -> None:
        self.s = surface
        self.tp = asked["tp"].astype(float)
        self.dp = asked["dp"].astype(float)
        self.ep = asked["ep"].astype(bool)
        self.seqs = asked["seqs"].astype(float)
        self.batched = asked["batched"].astype(float)
        self.weights = asked["weights"].astype(int)
        self.kv8 = asked["kv8"].astype(bool)
        self.block = asked["block"].astype(float)
        self.prefix = asked["prefix"].astype(bool)
        self.overlap = asked["overlap"].astype(bool)
        self.graph = asked["graph"].astype(int)
        self.capture = np.where(self.graph > 0, asked["capture"].astype(float), 0.0)
        self.draft = asked["draft"].astype(int)
        self.draft_tokens = np.where(self.draft > 0, asked["draft_tokens"].astype(float), 0.0)
        self.gmu = asked["gmu"].astype(float)
        self.start_seqs = started["seqs"].astype(float)
        self.start_batched = started["batched"].astype(float)
        acceptance = np.array([0.0, 0.3, 0.65])[self.draft]
        self.tokens_per_step = np.where(
            self.draft > 0, (1 - acceptance ** (self.draft_tokens + 1)) / (1 - acceptance), 1.0
        )
        self.positions = 1 + self.draft_tokens
        self.context = surface.prompt + surface.answer / 2
        self.kv_tokens = np.maximum(self._pool(), 0.0) / self._kv_per_token()

    def _weights_per_gpu(self) -> Array:
        size = self.s.total_b * 1e9 * WEIGHT_BYTES[self.weights]
        experts = size * self.s.expert_share / np.where(self.ep, self.tp * self.dp, self.tp)
        draft = np.where(self.draft == 2, 0.5e9 + 1.5e9 / self.tp, 0.0)
        return size * (1 - self.s.expert_share) / self.tp + experts + draft

    def _kv_per_token(self) -> Array:
        return self.s.kv_bytes * np.where(self.kv8, 0.5, 1.0) / self.tp

    def _pool(self) -> Array:
        activations = 0.4e9 + self.start_batched * 0.45e6 / np.sqrt(self.tp) + self.start_seqs * 2.2e6
        activations = activations + np.where(self.ep, self.start_batched * 0.2e6, 0.0)
        return self.gmu * self.s.card.memory - self._weights_per_gpu() - activations

    def failed(self) -> NDArray[np.int64]:
        """Starts fail without room for one longest sequence; a load fails where its peaks exceed what gmu leaves."""
        start = (self.kv_tokens < self.s.longest) | (self.start_batched < self.start_seqs)
        graphs = np.select(
            [self.graph == 1, self.graph == 2], [0.4e9 + self.capture * 1e6, 0.6e9 + self.capture * 2e6], 0
        )
        outside = 1.2e9 + 0.2e9 * np.log2(self.tp) + np.where(self.ep, 0.8e9, 0.0) + graphs
        peak = 0.3e9 + self.batched * 0.12e6 + np.where(self.draft > 0, self.seqs * 1e6, 0.0)
        load = outside + peak > (1 - self.gmu) * self.s.card.memory
        return np.where(start, 1, np.where(load, 2, 0))

    def _step(self, decoding: Array, prefill: Array) -> Array:
        """Seconds of a step with so many sequences decoding and so many prompt tokens, on one replica."""
        s, tokens = self.s, decoding * self.positions + prefill
        size = s.total_b * 1e9 * WEIGHT_BYTES[self.weights]
        touched = 1 - (1 - s.active_b / s.total_b) ** np.maximum(tokens, 1) if s.expert_share else np.ones_like(tokens)
        spread = np.where(self.ep, self.tp * self.dp, self.tp)
        read = size * ((1 - s.expert_share) / self.tp + s.expert_share * touched / spread)
        read = read + decoding * self.context * self._kv_per_token() * np.where(self.block == 16, 1.03, 1.0)
        memory = read / (0.72 * s.card.bandwidth)
        busy = tokens / (tokens + 85 * np.sqrt(self.tp))
        tiling = np.where(self.ep | (s.expert_share == 0), 1.0, 0.88 - 0.03 * np.log2(self.tp))
        rate = 0.46 * s.card.flops * WEIGHT_SPEED[self.weights] * busy * tiling * self.tp
        compute = tokens * 2e9 * s.active_b / np.maximum(rate, 1.0)
        reduce = 2 * s.layers * (8e-6 + 4e-6 * np.log2(self.tp) + tokens * 16384 * (1 - 1 / self.tp) / s.card.link)
        exchange = s.layers * (60e-6 + tokens * 20000 / (0.6 * s.card.link))
        links = np.where(self.tp > 1, reduce, 0.0) + np.where(self.ep, exchange, 0.0)
        attention = prefill * self.context * s.layers * 1.3e-10 / self.tp * (989e12 / s.card.flops)
        return (
            np.maximum(memory, compute) + 0.25 * np.minimum(memory, compute) + links + attention + self._host(decoding)
        )

    def _host(self, decoding: Array) -> Array:
        """Launching kernels and scheduling: what CUDA graphs and overlapped scheduling save."""
        covered = (self.graph > 0) & (decoding * self.positions <= self.capture)
        launch = np.select(
            [covered & (self.graph == 2), covered], [30e-6, 65e-6], np.where(self.graph > 0, 115e-6, 190e-6)
        )
        schedule = (0.5e-3 + 9e-6 * decoding) * np.where(self.overlap, 0.3, 1.0)
        lookup = np.where(self.draft == 1, 0.9e-3 + 13e-6 * decoding, 0.0)
        drafting = np.where(self.draft == 2, self.draft_tokens * (0.55e-3 + 5e-6 * decoding), 0.0)
        return (
            launch * self.s.layers
            + schedule
            + lookup
            + drafting
            + np.where(self.overlap & (self.draft > 0), 1.3e-3, 0.0)
        )

    def _new_prompt(self) -> Array:
        hit = np.where(self.prefix, self.s.shared_prefix * (1 - 0.0022 * (self.block - 16)), 0.0)
        return self.s.prompt * (1 - hit)

    def throughput(self) -> Array:
        """Answer tokens per second of a closed loop at full concurrency."""
        s, per_replica = self.s, self.s.concurrency / self.dp
        room = np.maximum(self.kv_tokens / self.context, 1.0)
        wanted = np.minimum(per_replica, self.seqs)
        running = np.minimum(wanted, room)
        per_step = running * self.tokens_per_step * self._new_prompt() / s.answer
        share = np.minimum(1.0, 0.97 * self.batched / (running * self.positions + per_step))
        step = self._step(running * share, per_step * share)
        crowded = np.maximum(wanted / room - 1, 0.0)
        found = self.dp * running * share * self.tokens_per_step / step / (1 + 1.1 * crowded + 0.9 * crowded**2)
        return found * np.where(self.prefix, 0.992, 1.0) * (1 - 0.012 * np.log2(self.dp)) * np.where(
            self.ep & (self.dp > 1), 0.965, 1.0
        )  # fmt: skip

    def ttft(self) -> Array:
        """p95 of the time to first token in seconds, open loop at the surface's rate."""
        s, rate, prompt = self.s, self.s.rate / self.dp, self._new_prompt()
        decoding = np.full(self.tp.shape, 4.0)
        for _ in range(20):
            step = self._step(decoding, np.minimum(rate * prompt * 0.03, self.batched))
            decoding = 0.5 * decoding + 0.5 * np.clip(rate * s.answer * step / self.tokens_per_step, 0.5, 4096)
        budget = np.maximum(self.batched - decoding * self.positions, 48.0)
        own = np.ceil(prompt / budget) * self._step(decoding, np.minimum(prompt, budget))
        together = np.clip(budget / prompt, 1, 6)
        burst = self._step(decoding, np.minimum(budget, together * prompt))
        load = np.maximum(np.minimum(rate * burst / together, 3.0), 0.9 * rate * own / together)
        held = np.minimum(load, 0.97)
        waiting = (1.5 + 0.27 * np.sqrt(self.dp)) * held / (1 - held) * own + 0.3 * held * burst * together**0.35
        slots = np.maximum(np.minimum(self.seqs, self.kv_tokens / self.context), 1.0)
        full = np.minimum(decoding / slots, 0.98)
        queue = np.where(
            full > 0.7, 2 * (full - 0.7) / (1 - full) * s.answer * step / self.tokens_per_step / slots, 0.0
        )
        overload = 60 * np.maximum(load - 0.97, 0.0) + 25 * np.maximum(decoding / slots - 0.98, 0.0)
        return np.minimum(0.01 + own + step + waiting + queue + overload, 60.0)

    def loss(self) -> Array:
        """Points of quality lost; two savings together cost more than their sum."""
        both = np.where(self.kv8, np.array([0.0, 0.55, 0.5])[self.weights], 0.0)
        return WEIGHT_LOSS[self.weights] + np.where(self.kv8, 0.45, 0.0) + both
