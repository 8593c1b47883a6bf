"""Shares of this machine's cores for engines that run beside each other on the CPU. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def binding(cpus: Sequence[int], engines: int) -> list[str] | None:
    """For each engine the cores that its worker computes on, as `VLLM_CPU_OMP_THREADS_BIND` takes them.

    Args:
        cpus: cores that we may use, in order (neighbours are near each other).
        engines: number of engines.

    Returns:
        Disjoint ranges of equal size; None where there are fewer cores than engines.
    """
    each = len(cpus) // engines
    if each < 1:
        return None
    return [",".join(map(str, cpus[index * each : (index + 1) * each])) for index in range(engines)]
