"""How a start or a running engine fails, with vLLM's own texts. A failure carries its text and where it is raised."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .memory import MemoryPlan


class ConfigRefusal(Exception):
    """Refused while the configuration is built, in the API server: traceback, exit code 1."""

    def __init__(self, error: str, *lines: str) -> None:
        super().__init__(error)
        self.lines = (error, *lines)


class EngineFailure(Exception):
    """Raised inside the engine process (EngineCore or Worker) in a phase of the start, or under load: exit code 1."""

    def __init__(self, phase: str, error: str, *hints: str) -> None:
        super().__init__(error)
        self.phase = phase
        self.error = error
        self.hints = hints
        self.memory: MemoryPlan | None = None
        """The layout that did not fit, where the start had come so far."""


def invalid(config: str, message: str) -> ConfigRefusal:
    """A pydantic validation error of one of vLLM's config classes, raised by a validator (``Value error``)."""
    return ConfigRefusal(
        f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {config}",
        f"  Value error, {message} [type=value_error, input_value=ArgsKwargs(()), input_type=ArgsKwargs]",
        "    For further information visit https://errors.pydantic.dev/2.14/v/value_error",
    )


def out_of_range(config: str, field: str, relation: str, limit: str, value: float, slug: str) -> ConfigRefusal:
    """A pydantic range error, for example ``gpu_memory_utilization`` above 1."""
    kind = type(value).__name__
    return ConfigRefusal(
        f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {config}",
        field,
        f"  Input should be {relation} {limit} [type={slug}, input_value={value!r}, input_type={kind}]",
        f"    For further information visit https://errors.pydantic.dev/2.14/v/{slug}",
    )


def out_of_memory(phase: str, tried_gib: float, card_gib: float, free_gib: float, *hints: str) -> EngineFailure:
    """PyTorch's out-of-memory text. ``free_gib`` is what is left when the allocation is tried."""
    free = max(0.0, free_gib)
    return EngineFailure(
        phase,
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {_amount(tried_gib)}. GPU 0 has a total "
        f"capacity of {card_gib:.2f} GiB of which {_amount(free)} is free. Including non-PyTorch memory, this process "
        f"has {card_gib - free:.2f} GiB memory in use.",
        *hints,
    )


def _amount(gib: float) -> str:
    return f"{gib:.2f} GiB" if gib >= 1 else f"{gib * 1024:.2f} MiB"
