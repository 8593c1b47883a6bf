"""What vLLM uses where an argument is not given, for placing a baseline in a space. Approximate by nature."""

from __future__ import annotations

from collections.abc import Collection

from autotune.space.config import Change, EngineConfig, FrozenValue

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


STABLE: dict[str, FrozenValue] = {
    "enable_chunked_prefill": True,
    "enforce_eager": False,
    "kv_cache_dtype": "auto",
    "long_prefill_token_threshold": 0,
    "scheduling_policy": "fcfs",
    "data_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "tensor_parallel_size": 1,
    "enable_expert_parallel": False,
}
"""Defaults that are the same for every card and every vLLM from 0.26 to 0.33: giving them changes nothing."""


def real_changes(config: EngineConfig, baseline: EngineConfig) -> tuple[Change, ...]:
    """What `config` changes, without arguments that only spell out vLLM's default."""
    return tuple(change for change in config.changes_from(baseline) if not _spelt_out(change))


def without_spelt_out(config: EngineConfig) -> EngineConfig:
    """The same configuration in fewer words: arguments that equal vLLM's default are left out."""
    kept = tuple((name, value) for name, value in config.args if name not in STABLE or STABLE[name] != value)
    return EngineConfig(kept, config.env)


def _spelt_out(change: Change) -> bool:
    if change.name not in STABLE:
        return False
    default = STABLE[change.name]
    before = default if change.before is None else change.before
    after = default if change.after is None else change.after
    return before == after


UNLIMITED: dict[str, FrozenValue] = {"long_prefill_token_threshold": 0}
"""Limits whose value of nothing means that there is none."""


def lowers(name: str, value: FrozenValue, limit: FrozenValue) -> bool:
    """Whether an engine that was started with `limit` can be lowered to `value` while it runs; equal is low enough.

    Numbers only: whatever else differs needs a new process.
    """
    if value == limit:
        return True
    if isinstance(value, bool) or isinstance(limit, bool):
        return False
    if not isinstance(value, int | float) or not isinstance(limit, int | float):
        return False
    without = UNLIMITED.get(name)
    return value != without and (limit == without or value < limit)


def live_defaults(names: Collection[str]) -> dict[str, FrozenValue]:
    """Those of `names` whose default is the same in every vLLM; what the others are, only a running engine knows."""
    return {name: STABLE[name] for name in names if name in STABLE}
