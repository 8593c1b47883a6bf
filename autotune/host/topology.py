"""How GPUs reach each other, and which of them make a good group. Pure: works on what NVML said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from autotune.host.gpus import Gpu, GpuHost

SPEED: Final[Mapping[str, int]] = {"nvlink": 0, "pcie": 1, "numa": 2}
"""Kinds of link, fastest first: `nvlink` (or NVSwitch), `pcie` (one socket), `numa` (across sockets)."""
_UNKNOWN = 1


def link_between(one: Gpu, other: Gpu) -> str:
    """The link of two GPUs; empty where NVML does not tell."""
    return next((link.kind for link in one.links if link.other == other.index), "")


def slowest_link(group: Sequence[Gpu]) -> str:
    """The slowest link inside a group; empty for a single GPU or where NVML does not tell."""
    kinds = {link_between(one, other) for at, one in enumerate(group) for other in group[at + 1 :]}
    return max(kinds, key=_rank, default="")


def nearest(free: Sequence[Gpu], count: int) -> tuple[Gpu, ...]:
    """The `count` GPUs that reach each other best, in an order in which neighbours are near each other.

    Of equally good groups the one is taken that breaks up fewest fast links of the others, so that a later group of
    the same size finds its own; then the one with the lowest numbers.
    """
    if count <= 0 or count > len(free):
        return ()
    groups = {frozenset(gpu.index for gpu in found): found for found in (_grown(seed, free, count) for seed in free)}

    def badness(group: Sequence[Gpu]) -> tuple[int, int, int, list[int]]:
        inside = {gpu.index for gpu in group}
        pairs = [_distance(one, other) for at, one in enumerate(group) for other in group[at + 1 :]]
        broken = sum(
            link_between(gpu, other) == "nvlink" for gpu in group for other in free if other.index not in inside
        )
        return max(pairs, default=0), sum(pairs), broken, sorted(inside)

    return in_order(min(groups.values(), key=badness))


def in_order(group: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The same GPUs so that consecutive ones are near each other: vLLM makes tensor parallel groups of neighbours.

    Halves are made first, then halves of them, as tensor parallel sizes are powers of two.
    """
    if len(group) <= 2:
        return tuple(sorted(group, key=lambda gpu: gpu.index))
    left = list(group)
    half = len(group) // 2 if len(group) % 2 == 0 else 1 << ((len(group) - 1).bit_length() - 1)
    seed = min(left, key=lambda gpu: gpu.index)
    first = _grown(seed, left, half)
    taken = {gpu.index for gpu in first}
    return (*in_order(first), *in_order([gpu for gpu in left if gpu.index not in taken]))


def tensor_links(group: Sequence[Gpu]) -> dict[int, str]:
    """The slowest link inside a tensor parallel group by its size, as the GPUs would be given to engines.

    Args:
        group: the GPUs of a trial, in the order of the lease.

    Returns:
        Sizes that fit the GPUs; links that NVML does not tell are left out.
    """
    found = {}
    for size in range(2, len(group) + 1):
        blocks = [group[at : at + size] for at in range(0, len(group) - size + 1, size)]
        slowest = max((slowest_link(block) for block in blocks), key=_rank)
        if slowest:
            found[size] = slowest
    return found


def link_warning(size: int, links: Mapping[int, str]) -> str:
    """What makes tensor parallel groups of `size` slow, given `tensor_links`; empty where nothing is known to."""
    match links.get(size, ""):
        case "numa":
            return f"{size} tensor parallel ranks talk across sockets"
        case "pcie":
            return f"{size} tensor parallel ranks talk over PCIe, not over NVLink"
    return ""


def trial_group(host: GpuHost | None, devices: Sequence[int] | None, count: int | None) -> tuple[Gpu, ...]:
    """The GPUs that a trial would be given on an idle host; empty where it has too few, or nobody looked."""
    gpus = [gpu for gpu in (host.gpus if host is not None else ()) if devices is None or gpu.index in devices]
    return nearest(gpus, len(gpus) if count is None else count)


def _grown(seed: Gpu, free: Sequence[Gpu], count: int) -> tuple[Gpu, ...]:
    """A group that begins with `seed` and takes the nearest one again and again."""
    group, left = [seed], [gpu for gpu in free if gpu.index != seed.index]
    while len(group) < count:

        def cost(gpu: Gpu) -> tuple[int, int, int]:
            distances = [_distance(gpu, other) for other in group]
            return max(distances), sum(distances), gpu.index

        following = min(left, key=cost)
        left.remove(following)
        group.append(following)
    return tuple(group)


def _distance(one: Gpu, other: Gpu) -> int:
    """Of two GPUs: by their link, and more where they hang on different sockets."""
    apart = one.numa_node is not None and other.numa_node is not None and one.numa_node != other.numa_node
    return 2 * _rank(link_between(one, other)) + int(apart)


def _rank(kind: str) -> int:
    return SPEED.get(kind, _UNKNOWN if kind else -1)
