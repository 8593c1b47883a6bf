"""The one route that vLLM does not have: scheduler limits change while the engine runs, below what it started with."""

from __future__ import annotations

from collections.abc import Mapping

from .config import EngineSettings
from .driver import RealTimeEngine

NAMES = ("max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold")


def reconfigure(engine: RealTimeEngine, settings: EngineSettings, wanted: Mapping[str, object]) -> str:
    """Set the limits of every scheduler; what is not given returns to what the engine was started with.

    Returns:
        Why it cannot be done, empty where it was done. Nothing changes where it cannot.
    """
    limits: dict[str, int] = {}
    for name in NAMES:
        started: int = getattr(settings, name)
        value = wanted.get(name, started)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            return f"{name}: {value!r} is no whole number"
        ceiling = settings.max_num_batched_tokens if name == "long_prefill_token_threshold" else started
        if value > ceiling:
            return f"{name}: {value} is more than the {ceiling} that the engine was started with"
        limits[name] = value
    unknown = sorted(set(wanted) - set(NAMES))
    if unknown or not limits["max_num_seqs"] or not limits["max_num_batched_tokens"]:
        return f"cannot change {', '.join(unknown)}" if unknown else "a limit of 0 would serve nobody"
    for core in engine.cores:
        scheduler = core.scheduler
        scheduler.max_num_seqs = limits["max_num_seqs"]
        scheduler.max_num_batched_tokens = limits["max_num_batched_tokens"]
        scheduler.long_prefill_token_threshold = limits["long_prefill_token_threshold"]
    return ""
