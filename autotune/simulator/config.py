"""From the options of one start to the settings the simulated engine runs with, refusing what vLLM refuses.

Defaults are those of ``vllm serve`` on CUDA (``EngineArgs``, vLLM 0.26 to 0.32).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .arguments import Flags
from .cards import Card, cards
from .failures import ConfigRefusal, EngineFailure, invalid, out_of_range
from .handover import connection
from .shapes import ModelShape, UnknownModel, load_shape

_DTYPES = {"auto": "bf16", "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float": "fp32", "float32": "fp32"}
_WEIGHT_FORMATS = {
    "fp8": "fp8", "fbgemm_fp8": "fp8", "compressed-tensors": "fp8", "modelopt": "fp8", "experts_int8": "int8",
    "bitsandbytes": "int4", "awq": "int4", "awq_marlin": "int4", "gptq": "int4", "gptq_marlin": "int4",
    "auto_gptq": "int4", "auto_awq": "int4", "mxfp4": "int4", "modelopt_fp4": "int4", "gguf": "int4",
}  # fmt: skip
_FROM_CHECKPOINT = ("awq", "awq_marlin", "gptq", "gptq_marlin", "auto_gptq", "auto_awq", "gguf", "modelopt_fp4")
_KV_FORMATS = {"auto": None, "bfloat16": "bf16", "float16": "fp16"}
_GRAPH_MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.53}
"""Bytes of one element by number format; 4-bit weights carry their scales."""


@dataclass(frozen=True)
class EngineSettings:
    """Everything the scheduler, the roofline and the memory model need. Sizes in tokens unless the name says."""

    shape: ModelShape
    card: Card
    gpus: int
    dtype: str = "bf16"
    weight_format: str = "bf16"
    kv_format: str = "bf16"
    max_model_len: int = 8192
    max_num_seqs: int = 1024
    max_num_batched_tokens: int = 8192
    gpu_memory_utilization: float = 0.92
    kv_cache_memory_bytes: int | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    api_servers: int = 1
    expert_parallel: bool = False
    block_size: int = 16
    prefix_caching: bool = True
    chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    graph_mode: str = "FULL_AND_PIECEWISE"
    graph_sizes: tuple[int, ...] = ()
    compiled: bool = True
    async_scheduling: bool = True
    scheduling_policy: str = "fcfs"
    stream_interval: int = 1
    max_logprobs: int = 20
    speculative_tokens: int = 0
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    enforce_eager: bool = False
    seed: int = 0
    kv_connector: str = ""
    kv_role: str = ""

    @property
    def eager(self) -> bool:
        """No CUDA graph at all."""
        return not self.graph_sizes

    @property
    def expert_parallel_size(self) -> int:
        """Cards that the experts are spread over (vLLM: TP times DP when expert parallel is on)."""
        return self.tensor_parallel * self.data_parallel if self.expert_parallel else 1

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of KV cache one token takes on one card (heads are replicated when TP exceeds them)."""
        heads = max(1, self.shape.kv_heads // self.tensor_parallel)
        layers = -(-self.shape.layers // self.pipeline_parallel)
        return 2 * layers * heads * self.shape.head_dim * BYTES[self.kv_format]


def default_capture_sizes(largest: int) -> tuple[int, ...]:
    """vLLM's ladder: 1, 2, 4, then by 8 to 256, then by 16."""
    ladder = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    return tuple(size for size in ladder if size <= largest)


def _int(flags: Flags, name: str, default: int) -> int:
    value = flags.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _text(flags: Flags, name: str, default: str) -> str:
    value = flags.get(name)
    return value if isinstance(value, str) else default


def _truth(flags: Flags, name: str, default: bool) -> bool:
    value = flags.get(name)
    return value if isinstance(value, bool) else default


def _graphs(flags: Flags, max_num_seqs: int, max_batched: int) -> tuple[str, tuple[int, ...], bool]:
    """CUDA-graph mode, capture sizes and whether the model is compiled."""
    raw = flags.get("compilation_config")
    compilation: Mapping[str, object] = raw if isinstance(raw, dict) else {}
    mode = str(compilation.get("cudagraph_mode") or "FULL_AND_PIECEWISE").upper()
    if mode not in _GRAPH_MODES:
        raise ConfigRefusal(
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for CompilationConfig",
            "cudagraph_mode",
            f"  Value error, Invalid cudagraph_mode: {mode}. Valid values are: {', '.join(_GRAPH_MODES)} "
            f"[type=value_error, input_value={mode!r}, input_type=str]",
        )
    level = str(flags.get("optimization_level", "2"))
    compiled = str(compilation.get("mode", "3")).upper() not in ("0", "NONE") and level != "0"
    if _truth(flags, "enforce_eager", False) or level == "0":
        return "NONE", (), False
    if mode == "NONE":
        return mode, (), compiled
    sizes = flags.get("cudagraph_capture_sizes") or compilation.get("cudagraph_capture_sizes")
    largest = flags.get("max_cudagraph_capture_size") or compilation.get("max_cudagraph_capture_size")
    if isinstance(sizes, list) and sizes:
        given = tuple(sorted({int(size) for size in sizes}))
        if isinstance(largest, int) and largest != given[-1]:
            raise invalid(
                "VllmConfig",
                f"customized max_cudagraph_capture_size(={largest}) should be consistent with the max value of "
                f"cudagraph_capture_sizes(={given[-1]})",
            )
        return mode, tuple(size for size in given if size <= max_batched), compiled
    top = largest if isinstance(largest, int) else min(2 * max_num_seqs, 512)
    return mode, default_capture_sizes(min(top, max_batched)), compiled


def _formats(flags: Flags, shape: ModelShape) -> tuple[str, str, str]:
    """Number formats of the model, of its linear weights and of the KV cache."""
    dtype = _DTYPES[_text(flags, "dtype", "auto")]
    method = _text(flags, "quantization", "") or shape.quantization or ""
    if method and method not in _WEIGHT_FORMATS:
        raise invalid(
            "ModelConfig",
            f"Unknown quantization method: {method}. Must be one of {sorted(_WEIGHT_FORMATS)}.",
        )
    asked = _text(flags, "quantization", "")
    if asked and shape.quantization and asked.removesuffix("_marlin") != shape.quantization.removesuffix("_marlin"):
        raise invalid(
            "ModelConfig",
            f"Quantization method specified in the model config ({shape.quantization}) does not match the "
            f"quantization method specified in the `quantization` argument ({asked}).",
        )
    if asked in _FROM_CHECKPOINT and not shape.quantization:
        raise invalid("VllmConfig", f"Cannot find the config file for {asked}")
    kv_name = _text(flags, "kv_cache_dtype", "auto")
    kv = _KV_FORMATS.get(kv_name, "int4" if "4bit" in kv_name or "fp4" in kv_name else "fp8")
    return dtype, _WEIGHT_FORMATS[method] if method else dtype, kv or dtype


def _check_lengths(settings: EngineSettings) -> None:
    s = settings
    if s.max_num_batched_tokens < s.max_model_len and not s.chunked_prefill:
        raise invalid(
            "SchedulerConfig",
            f"max_num_batched_tokens ({s.max_num_batched_tokens}) is smaller than max_model_len ({s.max_model_len}). "
            "This effectively limits the maximum sequence length to max_num_batched_tokens and makes vLLM reject "
            "longer sequences. Please increase max_num_batched_tokens or decrease max_model_len.",
        )
    if s.max_num_batched_tokens < s.max_num_seqs:
        raise invalid(
            "SchedulerConfig",
            f"max_num_batched_tokens ({s.max_num_batched_tokens}) must be greater than or equal to max_num_seqs "
            f"({s.max_num_seqs}).",
        )
    if s.long_prefill_token_threshold > s.max_model_len:
        raise invalid(
            "SchedulerConfig",
            f"long_prefill_token_threshold ({s.long_prefill_token_threshold}) cannot be greater than the "
            f"max_model_len ({s.max_model_len}).",
        )


def _check_layout(settings: EngineSettings) -> None:
    """Divisibility and GPU count: what vLLM refuses in the config first, then in the engine."""
    s, tp = settings, settings.tensor_parallel
    if s.shape.heads % tp:
        raise invalid(
            "VllmConfig",
            f"Total number of attention heads ({s.shape.heads}) must be divisible by tensor parallel size ({tp}).",
        )
    if s.expert_parallel and not s.shape.experts:
        raise invalid(
            "VllmConfig",
            "Number of experts in the model must be greater than 0 when expert parallelism is enabled.",
        )
    world = tp * s.pipeline_parallel * s.data_parallel
    if world > s.gpus:
        raise EngineFailure(
            "init",
            f"RuntimeError: please ensure that world_size ({world}) is less than than max local gpu count ({s.gpus})",
        )
    if s.block_size % 16:
        raise EngineFailure(
            "init", f"ValueError: No common block size for {s.block_size} (FLASH_ATTN: [MultipleOf(16)])."
        )
    if s.shape.vocab % tp:
        raise EngineFailure("load", f"AssertionError: {s.shape.vocab} is not divisible by {tp}")
    if s.shape.kv_heads % tp and tp % s.shape.kv_heads:
        raise EngineFailure("load", "AssertionError: assert tp_size % self.total_num_kv_heads == 0")
    ep = s.expert_parallel_size
    if s.shape.experts % ep:
        raise EngineFailure(
            "load",
            f"AssertionError: n_physical_experts={s.shape.experts} must be divisible by ep_size={ep}. "
            "Adjust num_redundant_experts.",
        )
    width = s.shape.moe_intermediate if s.shape.experts else s.shape.intermediate
    edge = s.shape.quantization_block
    if edge and not s.expert_parallel and (width // tp) % edge:
        raise EngineFailure(
            "load",
            f"ValueError: The output_size of gate's and up's weight = {width // tp} is not divisible by weight "
            f"quantization block_n = {edge}.",
        )


def _max_model_len(flags: Flags, shape: ModelShape, allow_longer: bool) -> int:
    asked = _int(flags, "max_model_len", shape.max_len)
    if asked > shape.max_len and not allow_longer:
        raise invalid(
            "ModelConfig",
            f"User-specified max_model_len ({asked}) is greater than the derived max_model_len "
            f"(max_position_embeddings={float(shape.max_len)} or model_max_length=None in model's config.json). To "
            "allow overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1.",
        )
    return shape.max_len if asked <= 0 else asked


def _utilization(flags: Flags) -> float:
    value = flags.get("gpu_memory_utilization", 0.92)
    share = float(value) if isinstance(value, int | float) else 0.92
    if share > 1:
        raise out_of_range(
            "CacheConfig", "gpu_memory_utilization", "less than or equal to", "1", share, "less_than_equal"
        )
    if share <= 0:
        raise out_of_range("CacheConfig", "gpu_memory_utilization", "greater than", "0", share, "greater_than")
    return share


def _speculative_tokens(flags: Flags) -> int:
    raw = flags.get("speculative_config")
    count = raw.get("num_speculative_tokens", 0) if isinstance(raw, dict) else 0
    return int(count) if isinstance(count, int) else 0


def _positive(flags: Flags, config: str, name: str, default: int) -> int:
    value = _int(flags, name, default)
    if value < 1:
        raise out_of_range(config, name, "greater than or equal to", "1", value, "greater_than_equal")
    return value


def _with_scheduling(model: EngineSettings, flags: Flags) -> EngineSettings:
    """Add what the scheduler and the CUDA graphs run with."""
    large = model.card.large
    chunked = _truth(flags, "enable_chunked_prefill", True)
    default = 8192 if large else 2048
    default = default if chunked else max(default, model.max_model_len)
    batched = _positive(flags, "SchedulerConfig", "max_num_batched_tokens", default)
    # Without an own choice vLLM lowers its default to what one batch can hold, but refuses the user's larger choice.
    seqs = _positive(flags, "SchedulerConfig", "max_num_seqs", min(1024 if large else 256, batched))
    mode, sizes, compiled = _graphs(flags, seqs, batched)
    return replace(
        model,
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        chunked_prefill=chunked,
        long_prefill_token_threshold=_int(flags, "long_prefill_token_threshold", 0),
        graph_mode=mode,
        graph_sizes=sizes,
        compiled=compiled,
        enforce_eager=_truth(flags, "enforce_eager", False),
        async_scheduling=_truth(flags, "async_scheduling", model.pipeline_parallel == 1),
        scheduling_policy=_text(flags, "scheduling_policy", "fcfs"),
        stream_interval=_positive(flags, "SchedulerConfig", "stream_interval", 1),
        speculative_tokens=_speculative_tokens(flags),
    )


def resolve(flags: Flags, card: str = "h100", gpus: int = 1, *, allow_longer: bool = False) -> EngineSettings:
    """Settings of the engine that these options start on ``gpus`` cards of the named kind.

    :param allow_longer: accept a max_model_len above the model's (VLLM_ALLOW_LONG_MAX_MODEL_LEN=1).

    :raises ConfigRefusal: what vLLM refuses while it builds its configuration.
    :raises EngineFailure: what its workers refuse before any memory is taken.
    """
    try:
        shape = load_shape(str(flags["model"]))
    except UnknownModel as error:
        raise ConfigRefusal(str(error)) from error
    dtype, weights, kv = _formats(flags, shape)
    kv_bytes = flags.get("kv_cache_memory_bytes")
    connector, role = connection(flags.get("kv_transfer_config"))
    model = EngineSettings(
        shape=shape,
        card=cards()[card.lower()],
        gpus=gpus,
        dtype=dtype,
        weight_format=weights,
        kv_format=kv,
        max_model_len=_max_model_len(flags, shape, allow_longer),
        gpu_memory_utilization=_utilization(flags),
        kv_cache_memory_bytes=kv_bytes if isinstance(kv_bytes, int) else None,
        tensor_parallel=_positive(flags, "ParallelConfig", "tensor_parallel_size", 1),
        pipeline_parallel=_positive(flags, "ParallelConfig", "pipeline_parallel_size", 1),
        data_parallel=(ranks := _positive(flags, "ParallelConfig", "data_parallel_size", 1)),
        api_servers=_positive(flags, "ParallelConfig", "api_server_count", ranks),
        expert_parallel=_truth(flags, "enable_expert_parallel", False),
        block_size=_positive(flags, "CacheConfig", "block_size", 16),
        prefix_caching=_truth(flags, "enable_prefix_caching", True),
        max_logprobs=_int(flags, "max_logprobs", 20),
        quantization=_text(flags, "quantization", "") or shape.quantization,
        kv_cache_dtype=_text(flags, "kv_cache_dtype", "auto"),
        seed=_int(flags, "seed", 0),
        kv_connector=connector,
        kv_role=role,
    )
    settings = _with_scheduling(model, flags)
    _check_lengths(settings)
    _check_layout(settings)
    return settings
