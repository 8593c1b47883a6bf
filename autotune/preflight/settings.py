"""What a configuration settles for memory and legality, with vLLM's own defaults filled in.

Sources: `EngineArgs` and `VllmConfig` of vLLM 0.26 to 0.32.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from autotune.preflight.model import ModelFacts
from autotune.space.config import EngineConfig, FrozenValue
from autotune.space.defaults import engine_defaults
from autotune.space.layout import Layout

_FLOAT_BYTES = {"float32": 4.0, "float": 4.0, "bfloat16": 2.0, "float16": 2.0, "half": 2.0}
_WEIGHT_BYTES = (  # first match wins; 4-bit weights carry scales and zero points
    ("fp4", 0.56), ("awq", 0.56), ("gptq", 0.56), ("bitsandbytes", 0.56), ("mxfp8", 1.03), ("fp8", 1.0), ("int8", 1.0),
    ("modelopt", 1.0), ("compressed-tensors", 1.0),
)  # fmt: skip
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True, slots=True)
class Serving:
    """A configuration with every default resolved that memory depends on.

    Attributes:
        layout: parallel sizes.
        dtype_bytes: bytes of an activation, an embedding, an unquantised weight.
        linear_bytes: bytes of a weight of the linear layers.
        weight_format: name of both, for grouping starts.
        kv_format: dtype of the KV cache as given, `auto` by default.
        kv_bytes: bytes of one of its elements.
        max_model_len: tokens; the model's own where not given.
        max_num_seqs: sequences in a batch.
        max_num_batched_tokens: tokens in a batch.
        utilization: share of the card's memory.
        kv_cache_bytes: explicit size of the KV cache, else None.
        block_size: tokens of a KV block.
        capture_sizes: batch sizes with a CUDA graph; empty in eager mode.
        full_and_piecewise: each of them is captured twice.
        chunked_prefill: prompts may be cut.
        speculative_tokens: drafted tokens a step.
        context_parallel: ranks that share a request's KV cache.
        images: images of a prompt that vLLM reserves for; 0 switches the tower off.
    """

    layout: Layout
    dtype_bytes: float = 2.0
    linear_bytes: float = 2.0
    weight_format: str = ""
    kv_format: str = "auto"
    kv_bytes: float = 2.0
    max_model_len: int = 2048
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    utilization: float = 0.92
    kv_cache_bytes: int | None = None
    block_size: int = 16
    capture_sizes: tuple[int, ...] = ()
    full_and_piecewise: bool = True
    chunked_prefill: bool = True
    speculative_tokens: int = 0
    context_parallel: int = 1
    images: int = 1

    @property
    def ladder(self) -> str:
        """Name of the captured graphs: equal for equal sizes and kinds."""
        sizes = self.capture_sizes
        kinds = "both" if self.full_and_piecewise else "one"
        return f"{len(sizes)}:{sizes[-1]}:{sum(sizes)}:{kinds}" if sizes else "none"


def serving_of(config: EngineConfig, facts: ModelFacts | None, *, memory: int | None, card: str, cpu: bool) -> Serving:
    """Resolve `config` for a model on a card.

    Args:
        config: complete configuration.
        facts: of the model, where known.
        memory: bytes of the card, None where unknown.
        card: its name, which decides some defaults.
        cpu: the CPU engine.
    """
    defaults = engine_defaults(0 if cpu else 1, memory, card)
    chunked = config.get("enable_chunked_prefill", True) is not False
    length = size_of(config.get("max_model_len")) or (facts.longest or facts.max_positions if facts else 2048)
    batched = size_of(config.get("max_num_batched_tokens"))
    seqs = size_of(config.get("max_num_seqs"))
    if batched is None:
        batched = _whole(defaults["max_num_batched_tokens"])
        batched = batched if chunked else max(batched, length)
        batched = min(batched, (seqs or _whole(defaults["max_num_seqs"])) * length)
    if seqs is None:
        seqs = min(_whole(defaults["max_num_seqs"]), batched)
    dtype_bytes = _dtype_bytes(config.get("dtype"), facts)
    quantization = str(config.get("quantization") or (facts.quantization if facts else ""))
    kv_format = str(config.get("kv_cache_dtype") or "auto")
    speculative = nested(config, "speculative_config").get("num_speculative_tokens")
    drafted = speculative if isinstance(speculative, int) else 0
    utilization = config.get("gpu_memory_utilization", defaults["gpu_memory_utilization"])
    serving = Serving(
        layout=Layout.of(config),
        dtype_bytes=dtype_bytes,
        linear_bytes=_linear_bytes(quantization, facts, dtype_bytes),
        weight_format=f"{quantization or 'none'}/{dtype_bytes:g}",
        kv_format=kv_format,
        kv_bytes=_kv_bytes(kv_format, dtype_bytes),
        max_model_len=length,
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        utilization=float(utilization) if isinstance(utilization, int | float) else 0.92,
        kv_cache_bytes=size_of(config.get("kv_cache_memory_bytes")),
        block_size=size_of(config.get("block_size")) or _whole(defaults["block_size"]),
        chunked_prefill=chunked,
        speculative_tokens=drafted,
        context_parallel=size_of(config.get("decode_context_parallel_size")) or 1,
        images=_images(config, facts),
    )
    return serving if cpu else _with_graphs(serving, config)


def size_of(value: FrozenValue) -> int | None:
    """An integer as vLLM reads it: `32k` is 32,000, `32K` 32,768; None for anything else, and for `auto` and -1."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return int(value) if value > 0 else None
    if not isinstance(value, str) or not value:
        return None
    unit = _DECIMAL.get(value[-1]) or _BINARY.get(value[-1])
    digits = value[:-1] if unit else value
    try:
        number = float(digits) * (unit or 1)
    except ValueError:
        return None
    return int(number) if number > 0 else None


def nested(config: EngineConfig, name: str) -> dict[str, FrozenValue]:
    """What stands below the argument `name`: dotted arguments, or its JSON text."""
    found: dict[str, FrozenValue] = {}
    whole = config.get(name)
    if isinstance(whole, str) and whole.startswith("{"):
        try:
            found.update(EngineConfig.of(json.loads(whole)).args)
        except (ValueError, TypeError):
            return {}
    prefix = f"{name}."
    found.update((key.removeprefix(prefix), value) for key, value in config.args if key.startswith(prefix))
    return found


def default_capture_sizes(largest: int) -> tuple[int, ...]:
    """vLLM's ladder of captured batch sizes: 1, 2, 4, by 8 up to 256, then by 16."""
    ladder = (1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16))
    return tuple(size for size in ladder if size <= largest)


def _with_graphs(serving: Serving, config: EngineConfig) -> Serving:
    compilation = nested(config, "compilation_config")
    mode = str(compilation.get("cudagraph_mode") or "FULL_AND_PIECEWISE").upper()
    level = str(config.get("optimization_level", 2)).lstrip("O")
    if config.get("enforce_eager") is True or mode == "NONE" or level == "0":
        return serving
    given = config.get("cudagraph_capture_sizes") or compilation.get("cudagraph_capture_sizes")
    if isinstance(given, tuple):
        sizes = tuple(sorted({size for size in given if isinstance(size, int)}))
    else:
        asked = config.get("max_cudagraph_capture_size") or compilation.get("max_cudagraph_capture_size")
        step = serving.max_num_seqs * (1 + serving.speculative_tokens)
        sizes = default_capture_sizes(asked if isinstance(asked, int) else min(2 * step, 512))
    kept = tuple(size for size in sizes if size <= serving.max_num_batched_tokens)
    return replace(serving, capture_sizes=kept, full_and_piecewise=mode == "FULL_AND_PIECEWISE")


def _whole(value: FrozenValue) -> int:
    return value if isinstance(value, int) else 0


def _dtype_bytes(asked: FrozenValue, facts: ModelFacts | None) -> float:
    if isinstance(asked, str) and asked in _FLOAT_BYTES:
        return _FLOAT_BYTES[asked]
    return 2.0  # `auto` keeps 16 bits, and takes 16 for a checkpoint of 32


def _linear_bytes(quantization: str, facts: ModelFacts | None, dtype_bytes: float) -> float:
    if facts is not None and facts.quantization:
        scales = 4 / facts.quantization_block**2 if facts.quantization_block else 0.0
        if facts.quantization == "mxfp4":
            return 0.53125  # 4 bits, and a byte of scale for 32 of them
        return 0.56 * facts.weight_bits / 4 if facts.weight_bits < 8 else facts.weight_bits / 8 + scales
    return next((size for name, size in _WEIGHT_BYTES if name in quantization), dtype_bytes)


def _kv_bytes(kv_format: str, dtype_bytes: float) -> float:
    if "fp8" in kv_format or kv_format == "int8":
        return 1.0
    if "fp4" in kv_format or "int4" in kv_format:
        return 0.5625
    return _FLOAT_BYTES.get(kv_format, dtype_bytes)


def _images(config: EngineConfig, facts: ModelFacts | None) -> int:
    if facts is None or not facts.multimodal or config.get("language_model_only") is True:
        return 0
    counts = modality_limits(config).values()
    return max(counts) if counts else 1


def modality_limits(config: EngineConfig) -> dict[str, int]:
    """Items of each kind that `limit_mm_per_prompt` allows in a prompt: a count, or a mapping with a `count`."""
    found: dict[str, int] = {}
    for name, value in nested(config, "limit_mm_per_prompt").items():
        modality, _, rest = name.partition(".")
        if rest in ("", "count") and isinstance(value, int) and not isinstance(value, bool):
            found[modality] = value
    return found
