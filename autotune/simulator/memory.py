"""What a start puts into a card's memory, in the order vLLM does it, and where it runs out.

Per card, GiB::

    weights     linear weights by their format, embedding and head in the model's own format, over TP x PP (and EP)
    activation  one forward pass of max_num_batched_tokens: gate_up and its product (3 x MLP width) plus the residual
                stream, in the model's format, plus a constant workspace
    non_torch   driver context growth, NCCL buffers for every further card
    kv          gpu_memory_utilization x total - weights - activation - non_torch
    graphs      captured after the KV cache, outside that budget: buffers proportional to the sum of capture sizes

Calibrated on logs of vLLM 0.26.0 on one H200: GLM-4-9B 17.56 / 1.29 / 0.22 / 1.04 GiB at 8,192 batched tokens and
102 graphs, 3.35 GiB activation at 32,768 batched tokens, 0.46 GiB for 70 graphs.
"""

from __future__ import annotations

from dataclasses import dataclass

from .config import BYTES, EngineSettings
from .failures import EngineFailure, out_of_memory

GIB = 2.0**30
_WORKSPACE_GIB = 0.55
_NON_TORCH_GIB = 0.22
_NON_TORCH_PER_PEER_GIB = 0.35
_GRAPH_BASE_GIB = 0.06
_GRAPH_BUFFERS = 12  # hidden-sized buffers a captured token keeps alive
_SAMPLER_COPIES = 2.5  # float32 logits, their sorted copy, part of the probabilities
_LOG_SOFTMAX_COPIES = 2  # float32 logits and their log-softmax


@dataclass(frozen=True)
class MemoryPlan:
    """Memory of one card after a successful start, and the size of its KV cache."""

    total_gib: float
    free_at_start_gib: float
    weights_gib: float
    activation_gib: float
    non_torch_gib: float
    graphs_gib: float
    kv_gib: float
    blocks: int
    block_size: int
    spare_gib: float
    """Free on the card after the start; what a step needs beyond it kills the engine under load."""

    @property
    def kv_tokens(self) -> int:
        """Tokens the KV cache of one engine holds."""
        return self.blocks * self.block_size


def weight_bytes(settings: EngineSettings) -> float:
    """Bytes of weights on one card."""
    s, shape = settings, settings.shape
    shard = s.tensor_parallel * s.pipeline_parallel
    linear = (shape.attention_parameters + shape.dense_mlp_parameters) * BYTES[s.weight_format] / shard
    experts = shape.experts * shape.expert_parameters * BYTES[s.weight_format]
    spread = s.expert_parallel_size * s.pipeline_parallel if s.expert_parallel else shard
    rest = shape.unquantized_parameters * BYTES[s.dtype] / shard
    return linear + experts / spread + rest


def activation_gib(settings: EngineSettings) -> float:
    """Peak of one profiled forward pass beyond the weights."""
    shape = settings.shape
    width = 3 * max(1, shape.widest_mlp // settings.tensor_parallel) + shape.hidden
    return settings.max_num_batched_tokens * width * BYTES[settings.dtype] / GIB + _WORKSPACE_GIB


def check_step(settings: EngineSettings, memory: MemoryPlan, tokens: int, samples: int, prompt_logits: int) -> None:
    """See whether a step's passing buffers fit beside weights, KV cache and graphs.

    :param tokens: batched tokens of the step; ``samples``: sequences that sample; ``prompt_logits``: the most prompt
        positions of one request whose log-probabilities are asked for (float32 logits and their log-softmax).
    :raises EngineFailure: phase ``serve``; the engine that started well dies now.
    """
    share = tokens / settings.max_num_batched_tokens
    passing = share * (memory.activation_gib - _WORKSPACE_GIB)
    row = settings.shape.vocab * 4 / GIB
    largest = max(samples * row * _SAMPLER_COPIES, prompt_logits * row * _LOG_SOFTMAX_COPIES)
    if max(passing, largest) > memory.spare_gib:
        raise out_of_memory("serve", max(passing, largest), memory.total_gib, memory.spare_gib)


def graph_gib(settings: EngineSettings) -> float:
    """Memory of all captured graphs; one of the two kinds (full, piecewise) alone takes about half."""
    if not settings.graph_sizes:
        return 0.0
    both = settings.graph_mode == "FULL_AND_PIECEWISE"
    buffers = sum(settings.graph_sizes) * settings.shape.hidden * 2 * _GRAPH_BUFFERS / GIB
    return _GRAPH_BASE_GIB + (buffers if both else 0.5 * buffers)


def sampler_gib(settings: EngineSettings) -> float:
    """Peak of sampling one token for max_num_seqs requests (float32 logits over the vocabulary)."""
    return settings.max_num_seqs * settings.shape.vocab * 4 * _SAMPLER_COPIES / GIB


def plan(settings: EngineSettings) -> MemoryPlan:
    """Lay out one card's memory.

    :raises EngineFailure: with phase ``init``, ``load``, ``profile``, ``kv_init``, ``capture`` or ``warmup``; from
        ``profile`` on it carries the layout that did not fit.
    """
    card, s = settings.card, settings
    budget = s.gpu_memory_utilization * card.memory_gib
    if budget > card.free_gib and s.kv_cache_memory_bytes is None:
        raise EngineFailure(
            "init",
            f"ValueError: Free memory on device cuda:0 ({card.free_gib:.2f}/{card.memory_gib:.2f} GiB) on startup is "
            f"less than desired GPU memory utilization ({s.gpu_memory_utilization}, {budget:.2f} GiB). Decrease GPU "
            "memory utilization or reduce GPU memory used by other processes.",
        )
    peers = s.tensor_parallel * s.pipeline_parallel - 1
    non_torch = _NON_TORCH_GIB + _NON_TORCH_PER_PEER_GIB * min(peers, 3)
    weights = weight_bytes(s) / GIB
    loaded = weights + non_torch
    if loaded > card.free_gib:
        matrix = max(s.shape.head_parameters * BYTES[s.dtype] / s.tensor_parallel / GIB, 0.08)
        raise out_of_memory("load", matrix, card.memory_gib, min(0.05, matrix / 2))
    activation = activation_gib(s)
    kv = (s.kv_cache_memory_bytes / GIB) if s.kv_cache_memory_bytes is not None else budget - loaded - activation
    layout = MemoryPlan(
        total_gib=card.memory_gib,
        free_at_start_gib=card.free_gib,
        weights_gib=weights,
        activation_gib=activation,
        non_torch_gib=non_torch,
        graphs_gib=graph_gib(s),
        kv_gib=kv,
        blocks=max(0, int(kv * GIB // (s.kv_bytes_per_token * s.block_size))),
        block_size=s.block_size,
        spare_gib=card.free_gib - loaded - kv - graph_gib(s),
    )
    try:
        _check(s, layout)
    except EngineFailure as failure:
        failure.memory = layout
        raise
    return layout


def _check(settings: EngineSettings, layout: MemoryPlan) -> None:
    """Go through the profile run, the KV cache, graph capture and warm-up in their order."""
    m = layout
    left = m.free_at_start_gib - m.weights_gib - m.non_torch_gib
    if m.activation_gib > left:
        raise out_of_memory("profile", m.activation_gib, m.total_gib, left, "self.model_runner.profile_run()")
    _check_kv(settings, m)
    if m.kv_gib > left:
        raise out_of_memory("kv_init", m.kv_gib, m.total_gib, left)
    if m.spare_gib < 0:
        raise out_of_memory(
            "capture",
            0.002,
            m.total_gib,
            0.0004,
            "If out-of-memory error occurs during cudagraph capture, consider decreasing `gpu_memory_utilization` or "
            "switching to eager mode.",
        )
    if sampler_gib(settings) > m.spare_gib:
        raise EngineFailure(
            "warmup",
            "RuntimeError: CUDA out of memory occurred when warming up sampler with "
            f"{settings.max_num_seqs} dummy requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` "
            "when initializing the engine.",
        )


def _check_kv(settings: EngineSettings, layout: MemoryPlan) -> None:
    """See that there is a KV cache, and that one request of full length fits into it."""
    if layout.kv_gib <= 0:
        raise EngineFailure(
            "kv_init",
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
            "initializing the engine.",
        )
    if layout.kv_tokens < settings.max_model_len:
        needed = settings.max_model_len * settings.kv_bytes_per_token / GIB
        raise EngineFailure(
            "kv_init",
            f"ValueError: To serve at least one request with the models's max seq len ({settings.max_model_len}), "
            f"({needed:.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
            f"({layout.kv_gib:.2f} GiB). Based on the available memory, the estimated maximum model length is "
            f"{layout.kv_tokens}. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when "
            "initializing the engine.",
        )
