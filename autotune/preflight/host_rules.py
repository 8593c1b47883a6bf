"""What of the host must be there before engines are started: memory, /dev/shm, disk, open files.

These are no faults of a configuration: they are shown, not told to the search.
"""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

GIB = 2**30
SHM = Path("/dev") / "shm"
SHM_PER_RANKS = GIB
"""NCCL and vLLM's message queues between ranks; a container's default of 64 MiB is too little."""
SHM_LEAST = 128 * 2**20
CACHE_LEAST = 5 * GIB
"""Compiled graphs and kernels of a study: some hundred MiB for each batch size and number format."""
FILES_LEAST = 4096
MEMORY_LEAST = 4 * GIB


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What the host has, in bytes; None where it cannot be told.

    Attributes:
        memory_available: that processes could get now.
        shm_free: in /dev/shm.
        cache_free: on the disk of the compile cache.
        cache: where that is.
        open_files: soft and hard limit.
        gpu_used: on each GPU now, by index.
    """

    memory_available: int | None = None
    shm_free: int | None = None
    cache_free: int | None = None
    cache: str = ""
    open_files: tuple[int, int] | None = None
    gpu_used: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class HostFinding:
    """Something that will spoil a study.

    Attributes:
        id: short name.
        severity: `error` where starts will fail, `warning` where they may.
        text: what is.
        fix: what to do.
    """

    id: str
    severity: Literal["error", "warning"]
    text: str
    fix: str


def check_host(
    facts: HostFacts, *, ranks: int = 1, kv_cache_bytes: int = 0, idle: Mapping[int, int] | None = None
) -> tuple[HostFinding, ...]:
    """What is missing. Pure.

    Args:
        facts: of the host.
        ranks: GPUs (or CPU ranks) of a trial.
        kv_cache_bytes: host memory that a KV cache on the CPU will take.
        idle: bytes used on each GPU when nothing runs; more than that now means that something runs.
    """
    found = (_memory(facts, kv_cache_bytes), _shm(facts, ranks), _cache(facts), _files(facts), *_gpus(facts, idle))
    return tuple(finding for finding in found if finding is not None)


def read_host(environ: Mapping[str, str] | None = None) -> HostFacts:
    """The host now. Never raises."""
    env = os.environ if environ is None else environ
    root = env.get("VLLM_CACHE_ROOT") or f"{env.get('XDG_CACHE_HOME') or Path.home() / '.cache'}/vllm"
    return HostFacts(
        memory_available=_available(),
        shm_free=_free(SHM),
        cache_free=_free(Path(root)),
        cache=root,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE),
    )


def _memory(facts: HostFacts, kv_cache_bytes: int) -> HostFinding | None:
    needed = MEMORY_LEAST + kv_cache_bytes
    if facts.memory_available is None or facts.memory_available >= needed:
        return None
    text = (
        f"{facts.memory_available / GIB:.1f} GiB of host memory are free and an engine needs about {needed / GIB:.1f}"
    )
    return HostFinding("host_memory", "warning", text, "End other programs, or lower kv_cache_memory_bytes.")


def _shm(facts: HostFacts, ranks: int) -> HostFinding | None:
    needed = SHM_PER_RANKS if ranks > 1 else SHM_LEAST
    if facts.shm_free is None or facts.shm_free >= needed:
        return None
    text = f"{SHM} has {facts.shm_free / 2**20:.0f} MiB free; {ranks} ranks need about {needed / 2**20:.0f}"
    severity: Literal["error", "warning"] = "error" if ranks > 1 and facts.shm_free < SHM_LEAST else "warning"
    return HostFinding("shm", severity, text, "Start the container with --ipc=host or --shm-size=8g.")


def _cache(facts: HostFacts) -> HostFinding | None:
    if facts.cache_free is None or facts.cache_free >= CACHE_LEAST:
        return None
    text = f"{facts.cache_free / GIB:.1f} GiB are free for the compile cache in {facts.cache}"
    return HostFinding("compile_cache", "warning", text, "Free some disk, or set VLLM_CACHE_ROOT to another one.")


def _files(facts: HostFacts) -> HostFinding | None:
    if facts.open_files is None or facts.open_files[0] < 0 or facts.open_files[0] >= FILES_LEAST:
        return None
    soft, hard = facts.open_files
    text = f"{soft} open files are allowed; many connections at once need {FILES_LEAST} or more"
    able = hard < 0 or hard >= FILES_LEAST
    return HostFinding("open_files", "warning", text, f"ulimit -n {FILES_LEAST if able else hard}")


def _gpus(facts: HostFacts, idle: Mapping[int, int] | None) -> tuple[HostFinding, ...]:
    baseline = idle or {}
    return tuple(
        HostFinding(
            "gpu_memory",
            "error",
            f"GPU {index} has {(used - baseline[index]) / GIB:.2f} GiB more in use than when idle",
            "See who uses it with nvidia-smi; an engine left behind by a killed run is ended by: autotune clean",
        )
        for index, used in facts.gpu_used
        if index in baseline and used - baseline[index] > GIB // 4
    )


def _free(path: Path) -> int | None:
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _available() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None
