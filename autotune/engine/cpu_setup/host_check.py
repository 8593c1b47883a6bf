"""Whether the CPU engine can run on this machine, decided from facts that a test can write down."""

from __future__ import annotations

import ctypes
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

# One server with a 512 MiB KV cache holds 2.5 GB; below this the machine would swap.
MIN_MEMORY_BYTES: Final = 4 * 10**9
# The newest that any pinned wheel asks for.
MIN_GLIBC: Final = (2, 31)
PYTHONS: Final = ((3, 11), (3, 13))


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What decides whether the engine runs.

    Attributes:
        system: as ``platform.system()``, for example ``Linux``.
        machine: as ``platform.machine()``, for example ``x86_64``.
        python: major and minor version of the interpreter that the engine would use.
        glibc: version of the GNU C library, None where another one is used.
        cpu_flags: instruction-set flags as Linux names them.
        has_libnuma: whether ``libnuma.so.1`` loads.
        memory_bytes: memory of the machine.
    """

    system: str
    machine: str
    python: tuple[int, int]
    glibc: tuple[int, int] | None
    cpu_flags: frozenset[str]
    has_libnuma: bool
    memory_bytes: int


def read_host() -> HostFacts:
    """Read the facts of this machine."""
    return HostFacts(
        system=platform.system(),
        machine=platform.machine(),
        python=sys.version_info[:2],
        glibc=_glibc(),
        cpu_flags=_cpu_flags(),
        has_libnuma=_loads("libnuma.so.1"),
        memory_bytes=psutil.virtual_memory().total,
    )


def refusals(facts: HostFacts) -> tuple[str, ...]:
    """Every reason why the CPU engine cannot run here, each with what to do about it; empty if it can."""
    if facts.system != "Linux":
        return (f"it exists for Linux only, and this is {facts.system}",)
    if facts.machine not in ("x86_64", "aarch64"):
        return (f"it exists for x86_64 and aarch64 processors, and this is {facts.machine}",)
    found: list[str] = []
    if facts.machine == "x86_64" and "avx2" not in facts.cpu_flags:
        found.append("this processor has no AVX2 instructions")
    if facts.glibc is None or facts.glibc < MIN_GLIBC:
        library = "another C library" if facts.glibc is None else f"glibc {_dotted(facts.glibc)}"
        found.append(f"it needs glibc {_dotted(MIN_GLIBC)} or newer, and this system has {library}")
    if not PYTHONS[0] <= facts.python <= PYTHONS[1]:
        found.append(
            f"it needs Python {_dotted(PYTHONS[0])} to {_dotted(PYTHONS[1])}, and this is {_dotted(facts.python)}"
        )
    if not facts.has_libnuma:
        found.append(
            "the library libnuma.so.1 is missing "
            "(Debian, Ubuntu: apt install libnuma1; Fedora: dnf install numactl-libs)"
        )
    if facts.memory_bytes < MIN_MEMORY_BYTES:
        need, have = MIN_MEMORY_BYTES / 1e9, facts.memory_bytes / 1e9
        found.append(f"it needs {need:.0f} GB of memory, and this machine has {have:.1f} GB")
    return tuple(found)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _glibc() -> tuple[int, int] | None:
    name, version = platform.libc_ver()
    numbers = version.split(".")
    if name != "glibc" or len(numbers) < 2 or not (numbers[0].isdigit() and numbers[1].isdigit()):
        return None
    return int(numbers[0]), int(numbers[1])


def _cpu_flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
