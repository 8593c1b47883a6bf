"""The memory of one GPU (or of the CPU engine) as a budget: what is in it, what limits, what would fit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from autotune.preflight.calibration import Calibration, Margin
from autotune.preflight.model import ModelFacts
from autotune.preflight.settings import Serving, serving_of
from autotune.preflight.terms import GIB, Terms, terms_of
from autotune.space.config import EngineConfig

CONTEXT = GIB // 2
"""What the driver's context of the engine takes on an idle card before anything is loaded."""

_ESTIMATE = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"
USUAL_CAPTURE = 512
"""Largest batch with a graph for which the formula was compared with real starts."""
LOG_DIGITS = 0.006 * GIB
"""vLLM prints hundredths of a GiB."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU (all of a trial are alike), or the host's memory for the CPU engine.

    Attributes:
        memory_bytes: as the driver reports it.
        name: of the card.
        idle_used: bytes taken on the idle card, the driver's context of an engine included; None where not measured.
        cpu: it is no GPU.
    """

    memory_bytes: int
    name: str = ""
    idle_used: int | None = None
    cpu: bool = False

    @property
    def free_bytes(self) -> int:
        """Free before an engine loads anything; the whole card where the idle baseline is not known."""
        return self.memory_bytes - (self.idle_used or 0)


class Limit(StrEnum):
    """What does not fit, in the order in which vLLM meets it."""

    NONE = ""
    REQUEST = "memory_request_too_large"
    WEIGHTS = "oom_weights"
    PROFILE = "oom_profile_run"
    NO_CACHE = "kv_cache_too_small"
    GRAPHS = "oom_graph_capture"
    SAMPLER = "oom_sampler_warmup"


@dataclass(frozen=True)
class Shortage:
    """What does not fit, and by how much.

    Attributes:
        limit: which.
        needed, there: bytes.
    """

    limit: Limit
    needed: float
    there: float

    @property
    def violation(self) -> float:
        """Excess over what is there; above 0."""
        return max(0.01, min(10.0, self.needed / max(self.there, 0.01 * GIB) - 1))


@dataclass(frozen=True)
class MemoryBudget:
    """Memory of one GPU, bytes.

    Attributes:
        gpu: the card.
        serving: the configuration with its defaults.
        terms: what goes into it, corrected by the calibration.
        kv_cache: left for the KV cache; negative where nothing is.
        kv_cache_tokens: tokens that it holds over the GPUs of one replica; exact where its size is given.
        request_bytes: KV bytes of one request of full length.
        margin: by how much all this may be off.
        starts: real starts behind it; 0 for the formula alone.
        shortage: what surely does not fit, the margin taken off; None where it fits or nobody can tell.
        tight: what does not fit when nothing is taken off.
    """

    gpu: GpuFacts
    serving: Serving
    terms: Terms
    kv_cache: float
    kv_cache_tokens: int
    request_bytes: float
    margin: Margin
    starts: int
    shortage: Shortage | None = None
    tight: Shortage | None = None

    @property
    def full_requests(self) -> float:
        """Requests of full length that fit at once."""
        return self.kv_cache_tokens / self.serving.max_model_len if self.serving.max_model_len else 0.0

    @property
    def longest(self) -> int:
        """Longest single request that the cache holds, tokens."""
        if self.kv_cache <= self.terms.kv_fixed or not self.kv_cache_tokens:
            return 0
        return self.kv_cache_tokens

    @property
    def largest(self) -> tuple[tuple[int, int], ...]:
        """The most sequences that fit at once by their length: (max_num_seqs, tokens of each)."""
        lengths = [length for length in (1024, 4096, 16_384, 65_536) if length < self.serving.max_model_len]
        found = [(int(self.kv_cache_tokens // length), length) for length in (*lengths, self.serving.max_model_len)]
        return tuple(pair for pair in found if pair[0] > 0)

    @property
    def limiting(self) -> str:
        """The row that leaves the least room, in words."""
        shortage = self.shortage or self.tight
        if shortage is not None:
            return _WORDS[shortage.limit]
        wanted = self.serving.max_num_seqs * self.serving.max_model_len
        return "KV cache" if self.kv_cache_tokens < wanted else "max_num_seqs"

    @property
    def rows(self) -> tuple[tuple[str, float], ...]:
        """The budget as a table: name and bytes."""
        if self.gpu.cpu:
            return (
                ("memory of the host", self.gpu.memory_bytes),
                ("weights", self.terms.weights),
                ("KV cache", self.kv_cache),
            )
        return (
            ("memory of the card", self.gpu.memory_bytes),
            ("taken when idle", self.gpu.idle_used or 0),
            ("weights", self.terms.weights),
            ("activations", self.terms.activations),
            ("non-torch memory", self.terms.non_torch),
            ("KV cache", self.kv_cache),
            ("CUDA graphs", self.terms.graphs),
            ("sampler warm-up", self.terms.sampler),
            ("margin", self.margin.whole),
        )


_WORDS = {
    Limit.REQUEST: "free memory at the start",
    Limit.WEIGHTS: "weights",
    Limit.PROFILE: "activations",
    Limit.NO_CACHE: "KV cache",
    Limit.GRAPHS: "CUDA graphs",
    Limit.SAMPLER: "sampler warm-up",
}


def predict(
    facts: ModelFacts,
    config: EngineConfig,
    gpu: GpuFacts,
    calibration: Calibration,
    *,
    graphs_reserved: bool | None = None,
) -> MemoryBudget:
    """The memory of one GPU with `config`. Pure.

    Args:
        facts: of the model.
        config: complete configuration.
        gpu: the card.
        calibration: what earlier starts of this model on such a card said.
        graphs_reserved: this engine keeps room for graphs out of the KV cache's budget. vLLM does since 0.21, but not
            with every model runner; None lets the starts tell, and refuses nothing for graphs before the first one.
    """
    if dict(config.env).get(_ESTIMATE) == "0":
        graphs_reserved = False
    serving = serving_of(config, facts, memory=gpu.memory_bytes, card=gpu.name, cpu=gpu.cpu)
    terms = calibration.corrected(serving, terms_of(facts, serving))
    known = calibration.margin(serving, terms)
    margin = known if known is not None else _formula_margin(facts, serving, terms)
    if gpu.cpu:
        return _cpu_budget(serving, terms, gpu, calibration, margin)
    left_out = 0.0 if graphs_reserved is False else calibration.left_out(terms)
    unknown = graphs_reserved is not False and not calibration.samples
    hidden = terms.graphs if (unknown or graphs_reserved) and not serving.kv_cache_bytes else 0.0
    taken = terms.weights + terms.activations + terms.non_torch + left_out
    requested = serving.utilization * (calibration.total or gpu.memory_bytes)
    kv = float(serving.kv_cache_bytes) if serving.kv_cache_bytes else requested - taken
    scale = calibration.kv_scale(serving, terms)
    request = terms.request_bytes(serving.max_model_len) * scale
    return MemoryBudget(
        gpu=gpu,
        serving=serving,
        terms=terms,
        kv_cache=kv,
        kv_cache_tokens=_tokens(kv, terms, serving, scale),
        request_bytes=request,
        margin=margin,
        starts=len(calibration.samples),
        shortage=_shortage(serving, terms, gpu, calibration, kv, request, margin, hidden),
        tight=_shortage(serving, terms, gpu, calibration, kv, request, Margin(), hidden),
    )


def _cpu_budget(
    serving: Serving, terms: Terms, gpu: GpuFacts, calibration: Calibration, margin: Margin
) -> MemoryBudget:
    """The CPU engine: the KV cache is given in bytes, or a share of the host's memory, which others use as well."""
    kv = float(serving.kv_cache_bytes or max(0.0, serving.utilization * gpu.memory_bytes - terms.weights))
    scale = calibration.kv_scale(serving, terms)
    request = terms.request_bytes(serving.max_model_len) * scale
    shortage = None
    if serving.kv_cache_bytes and serving.kv_cache_bytes > gpu.memory_bytes:
        shortage = Shortage(Limit.REQUEST, serving.kv_cache_bytes, gpu.memory_bytes)
    elif serving.kv_cache_bytes and request > kv * 1.05:
        shortage = Shortage(Limit.NO_CACHE, request, kv)
    tokens = _tokens(kv, terms, serving, scale)
    return MemoryBudget(gpu, serving, terms, kv, tokens, request, margin, len(calibration.samples), shortage, shortage)


def _tokens(kv: float, terms: Terms, serving: Serving, scale: float) -> int:
    """Tokens as vLLM counts them: requests of full length, in whole blocks, times that length."""
    request = terms.request_bytes(serving.max_model_len) * scale
    page = terms.kv_per_token * scale * serving.block_size
    if kv <= 0 or request <= 0:
        return 0
    if page <= 0:
        return int(kv / request * serving.max_model_len)
    return int(kv // page / math.ceil(request / page - 1e-9) * serving.max_model_len)


def _formula_margin(facts: ModelFacts, serving: Serving, terms: Terms) -> Margin:
    """By how much the formulas may be off: more where shapes are harder to tell from a configuration."""
    share = 0.04 + 0.04 * bool(facts.quantization) + 0.04 * facts.is_moe + 0.12 * (facts.multimodal or facts.is_hybrid)
    if facts.weight_bytes:
        share *= 0.5  # the sum is known from the files, only its division is not
    share += 0.04 * (serving.linear_bytes < serving.dtype_bytes and not facts.quantization)
    peers = serving.layout.tensor * serving.layout.pipeline > 1
    # Graphs share a pool; how that grows beyond the usual sizes has not been measured.
    graphs = 0.4 if not serving.capture_sizes or serving.capture_sizes[-1] <= USUAL_CAPTURE else 1.0
    return Margin(share * terms.weights + (0.6 if peers else 0.3) * GIB, 0.4 * terms.activations, graphs * terms.graphs)


def _shortage(
    serving: Serving,
    terms: Terms,
    gpu: GpuFacts,
    calibration: Calibration,
    kv: float,
    request: float,
    margin: Margin,
    hidden: float,
) -> Shortage | None:
    """The first thing that is short by more than `margin`, in vLLM's own order.

    `hidden` bytes of what counts as KV cache may in truth have been kept free for graphs.
    """
    free = float(gpu.free_bytes) if calibration.free is None else max(calibration.free, gpu.free_bytes - CONTEXT)
    requested = serving.utilization * (calibration.total or gpu.memory_bytes)
    if serving.kv_cache_bytes is None and requested > free + min(margin.whole, LOG_DIGITS):
        return Shortage(Limit.REQUEST, requested, free)
    loaded = terms.weights + terms.non_torch
    if loaded > free + margin.weights:
        return Shortage(Limit.WEIGHTS, loaded, free)
    if loaded + terms.activations > free + margin.profile:
        return Shortage(Limit.PROFILE, loaded + terms.activations, free)
    if kv + (0.0 if serving.kv_cache_bytes else margin.profile) < max(request, 1.0):
        return Shortage(Limit.NO_CACHE, request - min(kv, 0.0), max(kv, 0.0))
    left = free - loaded - kv
    if serving.kv_cache_bytes is not None and left < -margin.weights:
        return Shortage(Limit.REQUEST, loaded + kv, free)
    left += hidden
    if terms.graphs > left + margin.whole:
        return Shortage(Limit.GRAPHS, loaded + kv + terms.graphs, free)
    if terms.graphs + terms.sampler > left + margin.whole:
        return Shortage(Limit.SAMPLER, loaded + kv + terms.graphs + terms.sampler, free)
    return None
