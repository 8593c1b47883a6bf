"""The terms of a GPU's memory by formula, before any start has been seen. Bytes throughout.

    weights      linear layers by their format, embedding, head, router and norms in the model's own, over TP x PP;
                 experts over TP x DP x PP (with and without expert parallel); KV projections are copied where TP
                 exceeds the KV heads; the fullest pipeline rank counts
    activations  one forward pass of max_num_batched_tokens: the MLP's three intermediate results and the residual
                 stream, and a constant workspace
    images       tower activations and the encoder's cache
    non_torch    what the driver and NCCL take during the start
    graphs       buffers that stay with captured graphs, proportional to the sum of captured sizes
    sampler      float32 logits, their sorted copy and probabilities for max_num_seqs rows; needed after the KV cache

Constants are fitted to the start lines of vLLM 0.26 on an H200 (dense 8B and 9B models). They are where a first start
begins; `calibration` replaces them with what the starts say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.preflight.model import ModelFacts
from autotune.preflight.settings import Serving

GIB = 2**30
WORKSPACE = int(0.58 * GIB)
NON_TORCH = int(0.22 * GIB)
NON_TORCH_PER_PEER = int(0.35 * GIB)
MOST_PEERS = 3
GRAPH_BASE = int(0.06 * GIB)
GRAPH_BUFFERS = 12
SAMPLER_COPIES = 2.5
PATCHES = 16_384
"""Patches of the largest image that a tower is profiled with, where the configuration does not say."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Bytes on one GPU.

    Attributes:
        weights, activations, non_torch, graphs, sampler: see the module.
        kv_per_token: KV bytes of one token in layers with full attention.
        kv_fixed: bytes of one request that do not grow with its length at full length (windows, recurrent state).
    """

    weights: float
    activations: float
    non_torch: float
    graphs: float
    sampler: float
    kv_per_token: float
    kv_fixed: float

    def request_bytes(self, tokens: int) -> float:
        """KV bytes of one request of that length."""
        return self.kv_per_token * tokens + self.kv_fixed


def terms_of(facts: ModelFacts, serving: Serving) -> Terms:
    """The terms of `facts` as `serving` lays it out."""
    per_token, fixed = kv_bytes(facts, serving)
    return Terms(
        weights=weight_bytes(facts, serving),
        activations=activation_bytes(facts, serving),
        non_torch=non_torch_bytes(serving),
        graphs=graph_bytes(facts, serving),
        sampler=serving.max_num_seqs * facts.vocabulary * 4 * SAMPLER_COPIES,
        kv_per_token=per_token,
        kv_fixed=fixed,
    )


def weight_bytes(facts: ModelFacts, serving: Serving) -> float:
    """Weights on the fullest GPU, scaled to the size of the files where those are known."""
    layout = serving.layout
    shape = _weights(facts, serving.linear_bytes, serving.dtype_bytes, layout.tensor, layout.pipeline, layout.data)
    if not facts.weight_bytes:
        return shape
    stored = facts.weight_bits / 8 if facts.quantization else (4.0 if facts.dtype == "float32" else 2.0)
    whole = _weights(facts, stored, 4.0 if facts.dtype == "float32" else 2.0, 1, 1, 1)
    ratio = facts.weight_bytes / whole
    # A ratio far from 1 means other files in the folder, or a shape that is not understood: the formula stands then.
    return shape * ratio if 0.6 < ratio < 1.7 else shape


def _weights(facts: ModelFacts, linear: float, plain: float, tensor: int, pipeline: int, data: int) -> float:
    depth = -(-facts.layers // pipeline) / facts.layers
    attention = facts.layers * attention_parameters(facts, tensor)
    dense_layers = facts.dense_layers if facts.is_moe else facts.layers
    mlp = 3 * facts.hidden * facts.intermediate * dense_layers / tensor
    moe_layers = facts.layers - dense_layers if facts.is_moe else 0
    experts = 3 * facts.hidden * facts.moe_intermediate * facts.experts * moe_layers / (tensor * data)
    shared = 3 * facts.hidden * facts.shared_intermediate * moe_layers / tensor
    # MXFP4 checkpoints quantise the experts only.
    others = plain if facts.quantization == "mxfp4" else linear
    router = facts.hidden * facts.experts * moe_layers + 2 * facts.hidden * facts.layers
    table = facts.hidden * facts.vocabulary / tensor
    embeddings = table * (1 if facts.tied or pipeline > 1 else 2)
    tower = facts.vision_parameters / tensor
    body = others * (attention + mlp + shared) + linear * experts + plain * router
    return depth * body + plain * (embeddings + tower)


def attention_parameters(facts: ModelFacts, tensor: int) -> float:
    """Weights of one layer's attention on one of `tensor` ranks."""
    if facts.is_mla:
        head = facts.nope_head_dim + facts.rope_head_dim
        values = facts.value_head_dim or facts.nope_head_dim
        queries = facts.heads * head
        down = facts.hidden * (facts.kv_lora_rank + facts.rope_head_dim + facts.q_lora_rank)
        query = (facts.q_lora_rank or facts.hidden) * queries
        up = facts.kv_lora_rank * facts.heads * (facts.nope_head_dim + values)
        return down + (query + up + facts.heads * values * facts.hidden) / tensor
    own = facts.heads * facts.head_dim / tensor
    kv = kv_heads(facts, tensor) * facts.head_dim
    return 2 * facts.hidden * own + 2 * facts.hidden * kv


def kv_heads(facts: ModelFacts, tensor: int) -> int:
    """KV heads of one rank: at least one, copied where there are more ranks than heads."""
    return max(1, facts.kv_heads // tensor)


def activation_bytes(facts: ModelFacts, serving: Serving) -> float:
    """Peak of one profiled forward pass, with the tower's."""
    tensor = serving.layout.tensor
    if facts.is_moe:
        width = max(facts.moe_intermediate * facts.experts_per_token, facts.hidden, facts.shared_intermediate)
    else:
        width = facts.intermediate
    per_token = (3 * max(1, width // tensor) + facts.hidden) * serving.dtype_bytes
    return serving.max_num_batched_tokens * per_token + WORKSPACE + image_bytes(facts, serving)


def image_bytes(facts: ModelFacts, serving: Serving) -> float:
    """The encoder's cache (one batch of embeddings) and a pass of the tower over its largest image."""
    if not serving.images or not facts.multimodal:
        return 0.0
    cache = serving.max_num_batched_tokens * facts.hidden * serving.dtype_bytes
    width = math.sqrt(facts.vision_parameters / 12 / 27)  # 27 layers of 12 width^2 weights: the usual tower
    return cache + PATCHES * 8 * width * serving.dtype_bytes


def non_torch_bytes(serving: Serving) -> float:
    """Driver and NCCL buffers: more with peers, up to a node's worth."""
    peers = serving.layout.tensor * serving.layout.pipeline - 1
    return NON_TORCH + NON_TORCH_PER_PEER * min(peers, MOST_PEERS)


def graph_bytes(facts: ModelFacts, serving: Serving) -> float:
    """Memory that captured graphs keep; one of the two kinds alone takes about half."""
    if not serving.capture_sizes:
        return 0.0
    buffers = sum(serving.capture_sizes) * facts.hidden * 2 * GRAPH_BUFFERS
    return GRAPH_BASE + buffers * (1.0 if serving.full_and_piecewise else 0.5)


def kv_bytes(facts: ModelFacts, serving: Serving) -> tuple[float, float]:
    """Per token in layers with full attention, and per request at full length in the others."""
    depth = -(-facts.layers // serving.layout.pipeline) / facts.layers
    if facts.is_mla:
        # FP8 latents keep the rotary part in 16 bits and a scale per 128 elements.
        fp8 = facts.kv_lora_rank + 2 * facts.rope_head_dim + 4 * (facts.kv_lora_rank // 128)
        plain = (facts.kv_lora_rank + facts.rope_head_dim) * serving.kv_bytes
        layer: float = fp8 if serving.kv_format == "fp8_ds_mla" else plain
    else:
        layer = 2 * kv_heads(facts, serving.layout.tensor) * facts.head_dim * serving.kv_bytes
    layer *= depth / serving.context_parallel
    windowed = min(facts.windowed_layers, facts.attention_layers)
    visible = min(facts.sliding_window + serving.max_num_batched_tokens, serving.max_model_len)
    state = facts.state_elements * depth * serving.dtype_bytes / serving.layout.tensor
    return layer * (facts.attention_layers - windowed), layer * windowed * visible + state
