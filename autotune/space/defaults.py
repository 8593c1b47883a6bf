"""What vLLM uses where an argument is not given, for placing a baseline in a space. Approximate by nature."""

from __future__ import annotations

from autotune.space.config import FrozenValue

_BIG_CARD = 70 * 2**30
_HUGE_CARD = 160 * 2**30
"""vLLM raises its scheduler's defaults with the card's memory (`EngineArgs.get_batch_defaults`)."""


def engine_defaults(gpus: int, gpu_memory: int | None, card: str) -> dict[str, FrozenValue]:
    """Defaults of `vllm serve` by argument name.

    Args:
        gpus: 0 for the CPU engine.
        gpu_memory: bytes per GPU; None counts as a big card.
        card: its name, as the A100 keeps the small defaults whatever its memory.

    Source: `EngineArgs.get_batch_defaults` and `CacheConfig` of vLLM 0.26 to 0.32.
    """
    shared: dict[str, FrozenValue] = {
        "long_prefill_token_threshold": 0,
        "gpu_memory_utilization": 0.92,
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
        "async_scheduling": gpus > 0,
        "scheduling_policy": "fcfs",
        "kv_cache_dtype": "auto",
        "enforce_eager": False,
    }
    if gpus == 0:
        return {**shared, "max_num_seqs": 128, "max_num_batched_tokens": 2048, "block_size": 128}
    memory = gpu_memory or _BIG_CARD
    big = memory >= _BIG_CARD and "a100" not in card.lower()
    return {
        **shared,
        "max_num_seqs": 1024 if big else 256,
        "max_num_batched_tokens": (16384 if memory >= _HUGE_CARD else 8192) if big else 2048,
        "block_size": 16,
        "max_cudagraph_capture_size": 512,
    }
