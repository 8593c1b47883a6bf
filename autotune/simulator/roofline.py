"""How long one step takes on the card.

Every part is the roofline of what it does; parts of one step run one after the other on the GPU::

    linear     FLOPs 2 x active weights x tokens and bytes of the weights touched, joined by a smooth maximum, because
               neither limit is reached sharply (exponent below). A mixture of experts touches
               E x (1 - (1 - k/E)^tokens) experts. Small batches waste part of a matrix unit's tile.
    attention  prefill: FLOPs 4 x heads x head_dim x sum of context lengths; decode: bytes of the KV read
    head       the output projection and the sampling passes over float32 logits, for sampling requests only
    collective two all-reduces a layer under TP, two all-to-alls a MoE layer under EP: bytes over the link + latency
    launch     time the CPU needs to launch kernels when no CUDA graph covers the batch; hidden below GPU work

Pipeline stages work on different batches at once; that is modelled as one stage that is faster by their number, less a
share for bubbles. Data-parallel engines do not wait for each other, also where their experts are shared.

The host (scheduling, input preparation, output processing in the engine process) overlaps with the GPU under async
scheduling and adds to it otherwise. The API server is modelled apart, in ``frontend.py``.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from .config import BYTES, EngineSettings
from .memory import weight_bytes
from .scheduler import Batch

_SMOOTH = 2.4
_TILE_TOKENS = 48  # tokens at which a matrix product reaches half of its sustained rate
_ATTENTION_PREFILL = 0.45  # share of the bfloat16 peak in FlashAttention prefill
_ATTENTION_DECODE = 0.60  # share of the bandwidth in paged decode attention
_SAMPLER_PASSES = 7  # reads or writes of the float32 logits in sampling
_KERNELS_PER_LAYER = 14
# One kernel of compiled code outside a graph, with its share of Python between the pieces. Measured: steps of 512
# tokens on an H200, larger than its largest graph (384), took 31 ms each and left the card 38 % busy (docs/evidence,
# second run, trial 5). Without compilation it is no less; how much more was not measured.
_LAUNCH_COMPILED_S = 55e-6
_LAUNCH_EAGER_S = 70e-6
_LAUNCH_PIECEWISE_S = 11e-6  # per layer: one graph replay and the attention kernel between the pieces
_LAUNCH_FULL_S = 60e-6
_ELEMENTWISE_PASSES = {"eager": 22, "compiled": 12}  # hidden-sized reads and writes a layer between matrix products
_HOST_STEP_S = 0.5e-3
_HOST_REQUEST_S = 11e-6
_HOST_TOKEN_S = 15e-9
_PIPELINE_BUBBLE = 1.12
_QUANTIZED_KV_DECODE = 1.1  # FP8 KV halves the bytes; the conversion costs part of it back


@dataclass(frozen=True)
class StepTime:
    """Parts of one step, seconds."""

    gpu_s: float
    host_s: float
    overlapped: bool

    @property
    def total_s(self) -> float:
        """From one step's start to the next one's."""
        return max(self.gpu_s, self.host_s) if self.overlapped else self.gpu_s + self.host_s


class Roofline:
    """Step times of one engine."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        shape, card = settings.shape, settings.card
        self._tp = settings.tensor_parallel
        self._format = settings.weight_format if settings.weight_format == "fp8" else "bf16"
        native = self._format in card.peak_flops
        self._linear_flops = card.sustained_flops(self._format)
        self._flops = card.sustained_flops("bf16")
        if settings.dtype == "fp32":
            self._linear_flops /= 8
            self._flops /= 8
        # Formats the card cannot multiply are expanded on the way, which costs arithmetic rate.
        if settings.weight_format in ("int4", "int8") or (settings.weight_format == "fp8" and not native):
            self._linear_flops *= 0.75
        self._bandwidth = card.sustained_bandwidth
        self._weights = weight_bytes(settings)
        item = BYTES[settings.weight_format]
        split = settings.expert_parallel_size if settings.expert_parallel else self._tp
        self._dense_bytes = (shape.attention_parameters + shape.dense_mlp_parameters) * item / self._tp
        self._expert_bytes = shape.experts * shape.expert_parameters * item / split
        self._token_flops = 2.0 * shape.active_linear_parameters / self._tp
        self._head_bytes = shape.head_parameters * BYTES[settings.dtype] / self._tp
        self._head_flops = 2.0 * shape.head_parameters / self._tp
        kv = settings.kv_bytes_per_token * settings.pipeline_parallel
        self._kv_token = kv * (_QUANTIZED_KV_DECODE if settings.kv_format == "fp8" else 1.0)
        passes = _ELEMENTWISE_PASSES["compiled" if settings.compiled else "eager"]
        self._elementwise = passes * shape.layers * shape.hidden * BYTES[settings.dtype]

    def step(self, batch: Batch) -> StepTime:
        """Time of one step."""
        work = (
            self._linear(batch.tokens)
            + self._attention(batch)
            + self._head(batch.samples)
            + self._collectives(batch.tokens)
            + self._elementwise * batch.tokens / self._bandwidth
        )
        gpu = max(work, self._launch(batch))
        pipeline = self.settings.pipeline_parallel
        if pipeline > 1:
            gpu = gpu / pipeline * _PIPELINE_BUBBLE + batch.tokens * self.settings.shape.hidden * 2 / (
                self.settings.card.link_bandwidth
            )
        host = _HOST_STEP_S + _HOST_REQUEST_S * batch.requests + _HOST_TOKEN_S * batch.tokens
        return StepTime(gpu, host, self.settings.async_scheduling)

    def _padded(self, tokens: int) -> int:
        sizes = self.settings.graph_sizes
        if not sizes or tokens > sizes[-1]:
            return tokens
        return sizes[bisect_left(sizes, tokens)]

    def _linear(self, tokens: int) -> float:
        padded = self._padded(tokens)
        shape = self.settings.shape
        arithmetic = self._token_flops * (padded + _TILE_TOKENS) / self._linear_flops
        touched = self._dense_bytes
        if shape.experts:
            share = 1.0 - (1.0 - shape.experts_per_token / shape.experts) ** tokens
            touched += self._expert_bytes * share
        memory = touched / self._bandwidth
        joined: float = (arithmetic**_SMOOTH + memory**_SMOOTH) ** (1 / _SMOOTH)
        return joined

    def _attention(self, batch: Batch) -> float:
        shape, card = self.settings.shape, self.settings.card
        seconds = batch.decode_context * self._kv_token / (card.hbm_bandwidth * _ATTENTION_DECODE)
        if batch.prefill:
            pairs = sum(length * (start + length / 2) for start, length in batch.prefill)
            work = 4.0 * shape.heads * shape.head_dim * shape.layers * pairs / self._tp
            seconds += work / (card.peak_flops["bf16"] * _ATTENTION_PREFILL)
        return seconds

    def _head(self, samples: int) -> float:
        if not samples:
            return 0.0
        logits = samples * self.settings.shape.vocab * 4 * _SAMPLER_PASSES
        arithmetic = self._head_flops * (samples + _TILE_TOKENS) / self._flops
        return max(arithmetic, self._head_bytes / self._bandwidth) + logits / self._bandwidth

    def _collectives(self, tokens: int) -> float:
        s, card, shape = self.settings, self.settings.card, self.settings.shape
        seconds = 0.0
        if self._tp > 1:
            moved = 2 * (self._tp - 1) / self._tp * tokens * shape.hidden * BYTES[s.dtype]
            seconds += 2 * shape.layers * (card.link_latency_s + moved / (0.75 * card.link_bandwidth))
        ep = s.expert_parallel_size
        if ep > 1:
            moved = (ep - 1) / ep * tokens * shape.experts_per_token * shape.hidden * BYTES[s.dtype] / self._tp
            seconds += 2 * shape.layers * (2 * card.link_latency_s + moved / (0.6 * card.link_bandwidth))
        return seconds

    def _launch(self, batch: Batch) -> float:
        s = self.settings
        kernels = _KERNELS_PER_LAYER * s.shape.layers
        if not s.graph_sizes or batch.tokens > s.graph_sizes[-1]:
            return kernels * (_LAUNCH_COMPILED_S if s.compiled else _LAUNCH_EAGER_S)
        decode_only = not batch.prefill
        if s.graph_mode == "FULL" or (decode_only and s.graph_mode in ("FULL_AND_PIECEWISE", "FULL_DECODE_ONLY")):
            return _LAUNCH_FULL_S
        if s.graph_mode == "FULL_DECODE_ONLY":
            return kernels * _LAUNCH_COMPILED_S
        return s.shape.layers * _LAUNCH_PIECEWISE_S
