"""GPU memory before a start and after a stop: the next engine must find what this one found."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from autotune.host.gpus import GpuReader, NvmlGpus
from autotune.host.processes import start_ticks
from autotune.host.xids import NoXids, NvmlXids, XidReader

DEADLINE = 30.0
SLACK = 256 << 20
"""Bytes above the baseline that still count as free: contexts of other tools come and go."""


@dataclass(frozen=True)
class GpuWatch:
    """The memory that was in use on the leased GPUs before the start, in bytes by NVML index.

    `idle_free_gib` is the smallest free memory among them at that moment, None without a GPU.
    """

    baseline: Mapping[int, int]
    reader: GpuReader
    idle_free_gib: float | None = None
    ecc: Mapping[int, int] = field(default_factory=dict)
    """Uncorrectable memory errors that the leased GPUs counted before the start, by NVML index."""
    buses: tuple[str, ...] = ()
    """PCI addresses of the leased GPUs, as NVML writes them."""
    xids: XidReader = field(default_factory=NoXids)
    """Faults that the driver reports of the leased GPUs from now on."""

    async def wait_free(self, pids: Iterable[int], deadline: float = DEADLINE) -> tuple[str, ...]:
        """Wait until `pids` are off the GPUs and the memory is back; what is still there, in words.

        Memory that a process of somebody else has taken meanwhile is not ours to wait for.
        """
        if not self.baseline:
            return ()
        mine = frozenset(pids)
        end = time.monotonic() + deadline
        while problems := await asyncio.to_thread(self._problems, mine):
            if time.monotonic() > end:
                return problems
            await asyncio.sleep(0.25)
        return ()

    def _problems(self, mine: frozenset[int]) -> tuple[str, ...]:
        words = []
        for gpu in self.reader.read().gpus:
            if gpu.index not in self.baseline:
                continue
            words += [f"process {p.pid} still holds GPU {gpu.index}" for p in gpu.processes if p.pid in mine]
            # In a container NVML may name pids of the host: one that is unknown here can be ours and is waited for.
            foreign = any(p.pid not in mine and start_ticks(p.pid) is not None for p in gpu.processes)
            above = gpu.memory_used - self.baseline[gpu.index]
            if above > SLACK and not foreign:
                words.append(f"GPU {gpu.index} has {above / 2**30:.1f} GiB more in use than before the start")
        return tuple(words)


def gpu_watch(indices: Iterable[int], reader: GpuReader | None = None, xids: XidReader | None = None) -> GpuWatch:
    """Note the memory in use now, and listen for faults from now on."""
    wanted = frozenset(indices)
    source = reader or NvmlGpus()
    if not wanted:
        return GpuWatch({}, source)
    gpus = [gpu for gpu in source.read().gpus if gpu.index in wanted]
    free = min((gpu.memory_total - gpu.memory_used for gpu in gpus), default=None)
    return GpuWatch(
        {gpu.index: gpu.memory_used for gpu in gpus},
        source,
        free / 2**30 if free is not None else None,
        {gpu.index: gpu.ecc_errors for gpu in gpus if gpu.ecc_errors is not None},
        tuple(gpu.pci_bus for gpu in gpus if gpu.pci_bus),
        xids if xids is not None else NvmlXids(sorted(wanted)) if reader is None else NoXids(),
    )
