"""Which cores a trial may use where several run on one host: near its GPUs, and nobody else's.

Memory follows the cores: Linux gives a process pages of the node that it runs on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.host.gpus import Gpu

CLIENT_SHARE = 3
"""The load client gets cores of its own where they are no more than a third of what the trial has."""


@dataclass(frozen=True, slots=True)
class CoreTopology:
    """Processors that we may run on.

    Attributes:
        nodes: NUMA nodes by number, each with its physical cores; a core is the numbers of its hardware threads.
    """

    nodes: tuple[tuple[int, tuple[tuple[int, ...], ...]], ...]

    @property
    def cores(self) -> tuple[tuple[int, ...], ...]:
        """All physical cores, node by node."""
        return tuple(core for _, cores in self.nodes for core in cores)


@dataclass(frozen=True, slots=True)
class CoreShare:
    """Processors of one trial. Empty: the kernel decides.

    Attributes:
        engine: for the engine.
        client: for the load client; the engine's where there are too few for two.
        node: NUMA node, None where the share is not tied to one.
    """

    engine: tuple[int, ...] = ()
    client: tuple[int, ...] = ()
    node: int | None = None


def read_cores(root: Path = Path("/"), allowed: frozenset[int] | None = None) -> CoreTopology:
    """The cores of this host.

    Args:
        root: another root folder in tests.
        allowed: processors that we may run on; default: as the kernel says.
    """
    mine = allowed if allowed is not None else frozenset(os.sched_getaffinity(0))
    system = root / "sys/devices/system"
    nodes = {}
    for folder in (system / "node").glob("node[0-9]*"):
        processors = mine.intersection(_numbers(folder / "cpulist"))
        if processors:
            nodes[int(folder.name.removeprefix("node"))] = _grouped(system, processors)
    return CoreTopology(tuple(sorted(nodes.items())) or ((0, _grouped(system, mine)),))


def node_of(gpus: Sequence[Gpu], root: Path = Path("/")) -> int | None:
    """The NUMA node that all of `gpus` hang on; None where that is not known or not one."""
    found = {_gpu_node(gpu, root) for gpu in gpus}
    return found.pop() if len(found) == 1 else None


def divide(topology: CoreTopology, places: Sequence[int | None], clients: int = 1) -> tuple[CoreShare, ...]:
    """A share of the cores for each place: equal, disjoint, on the place's node.

    Args:
        topology: the host's cores.
        places: NUMA node of each place's GPUs, None where it does not matter.
        clients: load client processes of a place.

    Returns:
        One share per place. All are empty for a single place, and where a node has fewer cores than places.
    """
    free = tuple(CoreShare() for _ in places)
    if len(places) < 2:
        return free
    by_node = dict(topology.nodes)
    tied = any(node is not None for node in places) and all(node in by_node for node in places)
    shares = list(free)
    for node in sorted({place for place in places if place is not None}) if tied else [None]:
        here = [index for index, place in enumerate(places) if not tied or place == node]
        cores = by_node[node] if node is not None else topology.cores
        each = len(cores) // len(here)
        if each == 0:
            return free
        for order, index in enumerate(here):
            shares[index] = _share(cores[order * each : (order + 1) * each], clients, node)
    return tuple(shares)


def _share(cores: Sequence[tuple[int, ...]], clients: int, node: int | None) -> CoreShare:
    own = clients if clients * CLIENT_SHARE <= len(cores) else 0
    engine = _flat(cores[own:])
    return CoreShare(engine, _flat(cores[:own]) or engine, node)


def _flat(cores: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sorted(number for core in cores for number in core))


def _grouped(system: Path, processors: frozenset[int]) -> tuple[tuple[int, ...], ...]:
    """Physical cores: hardware threads of one core belong together, so that neighbours never share one."""
    cores = set()
    for number in processors:
        siblings = processors.intersection(_numbers(system / f"cpu/cpu{number}/topology/thread_siblings_list"))
        cores.add(tuple(sorted(siblings | {number})))
    return tuple(sorted(cores))


def _gpu_node(gpu: Gpu, root: Path) -> int | None:
    if gpu.numa_node is not None and gpu.numa_node >= 0:
        return gpu.numa_node
    bus = gpu.pci_bus.lower()[-12:]  # NVML writes eight digits of the domain, the kernel four
    numbers = _numbers(root / "sys/bus/pci/devices" / bus / "numa_node") if bus else frozenset()
    return next(iter(numbers), None)


def _numbers(path: Path) -> frozenset[int]:
    """A list of the kernel's, such as `0-3,8`; empty where it is not there or says -1."""
    try:
        text = path.read_text().strip()
    except OSError:
        return frozenset()
    found: set[int] = set()
    for part in text.split(","):
        low, _, high = part.partition("-")
        if low.isdecimal():
            found.update(range(int(low), int(high or low) + 1))
    return frozenset(found)
