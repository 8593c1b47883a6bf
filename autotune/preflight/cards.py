"""Memory of cards by name, where the card itself is not at hand."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files

from autotune.errors import SpecError
from autotune.host.gpus import Gpu
from autotune.preflight.memory import GpuFacts
from autotune.preflight.terms import GIB
from autotune.space.expression import nearest

_Row = tuple[tuple[str, ...], int, int]


@lru_cache(maxsize=1)
def _cards() -> tuple[_Row, ...]:
    raw = tomllib.loads((files("autotune.preflight") / "cards.toml").read_text(encoding="utf-8"))
    return tuple((tuple(row["match"]), round(row["memory"] * GIB), round(row["idle"] * GIB)) for row in raw["card"])


def card_facts(name: str, memory: int | None = None) -> GpuFacts | None:
    """A card by (part of) its name, with `memory` bytes where given; None where neither tells its size."""
    found = next((row for row in _cards() if any(part in name.lower() for part in row[0])), None)
    if memory is not None:
        return GpuFacts(memory, name, None)
    return GpuFacts(found[1], name, found[2]) if found is not None else None


def unknown_card(name: str) -> SpecError:
    """What to say of a card that is not in the table."""
    known = [row[0][0] for row in _cards()]
    near = nearest(name.lower(), known)
    hint = f"did you mean {near}? " if near else ""
    hint += f"known: {', '.join(known)}; of others give the memory as well, such as `gpu_memory: 80GiB`"
    return SpecError(f"the memory of a {name!r} is not known", key="hardware.card", hint=hint)


def measured_facts(gpus: Sequence[Gpu]) -> GpuFacts | None:
    """The smallest of the GPUs of a trial, as read while nothing of ours runs on them; None where there are none."""
    if not gpus:
        return None
    least = min(gpus, key=lambda gpu: gpu.memory_total - gpu.memory_used)
    return GpuFacts(least.memory_total, least.name, least.memory_used)
