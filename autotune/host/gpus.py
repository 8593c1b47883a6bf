"""What NVML says about the GPUs of this host. A host without a GPU or driver has none, which is no error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory on a GPU; `memory` is in bytes, 0 where the driver does not tell."""

    pid: int
    memory: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """How two GPUs reach each other: `nvlink`, `pcie` (one switch or host bridge), `numa` (across sockets)."""

    other: int
    kind: str


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU at one moment. Memory in bytes, power in watts, clocks in MHz, temperature in degrees Celsius.

    Fields that the card or driver does not know are 0, empty or None.
    """

    index: int
    uuid: str
    name: str
    memory_total: int
    memory_used: int
    processes: tuple[GpuProcess, ...] = ()
    links: tuple[Link, ...] = ()
    numa_node: int | None = None
    pci_bus: str = ""
    sm_clock: int = 0
    sm_clock_max: int = 0
    power_watts: float = 0.0
    power_limit_watts: float = 0.0
    power_default_watts: float = 0.0
    temperature: int = 0
    utilisation: int = 0
    throttle: tuple[str, ...] = ()
    persistence: bool | None = None
    ecc_errors: int | None = None
    mig: bool = False
    compute_capability: str = ""


@dataclass(frozen=True, slots=True)
class GpuHost:
    """All GPUs of a host with the driver's versions; `problem` says why there are none."""

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    cuda: str = ""
    problem: str = ""

    def at(self, indices: Sequence[int]) -> tuple[Gpu, ...]:
        """The GPUs with these NVML indices, in their order; those that are not there are left out."""
        by_index = {gpu.index: gpu for gpu in self.gpus}
        return tuple(by_index[index] for index in indices if index in by_index)


class GpuReader(Protocol):
    """Where GPU values come from."""

    def read(self) -> GpuHost:
        """The GPUs now. Never raises."""


@dataclass
class FakeGpus:
    """GPUs for tests: each `read` gives the next host, the last one for ever."""

    hosts: list[GpuHost] = field(default_factory=lambda: [GpuHost()])
    reads: int = 0

    def read(self) -> GpuHost:
        """See `GpuReader`."""
        host = self.hosts[min(self.reads, len(self.hosts) - 1)]
        self.reads += 1
        return host


class NvmlGpus:
    """The real ones."""

    def read(self) -> GpuHost:
        """See `GpuReader`."""
        with _nvml() as nvml:
            if isinstance(nvml, str):
                return GpuHost(problem=nvml)
            try:
                count = nvml.nvmlDeviceGetCount()
                handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
                gpus = tuple(_gpu(nvml, index, handles) for index in range(count))
            except nvml.NVMLError as error:
                return GpuHost(problem=f"NVML: {error}")
            cuda = _ask(nvml, lambda: int(nvml.nvmlSystemGetCudaDriverVersion_v2()), 0)
            return GpuHost(
                gpus=gpus,
                driver=_text(_ask(nvml, nvml.nvmlSystemGetDriverVersion, "")),
                cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
            )


def read_gpus() -> GpuHost:
    """The GPUs of this host now."""
    return NvmlGpus().read()


@contextlib.contextmanager
def _nvml() -> Iterator[ModuleType | str]:
    try:
        import pynvml
    except ImportError:
        yield "nvidia-ml-py is not installed"
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield f"no NVIDIA driver: {error}"
        return
    try:
        yield pynvml
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _ask(nvml: ModuleType, question: Callable[[], T], default: T) -> T:
    """One value, or `default` where this card, driver or container does not tell."""
    try:
        return question()
    except (nvml.NVMLError, AttributeError):
        return default


def _gpu(nvml: ModuleType, index: int, handles: Sequence[object]) -> Gpu:
    me = handles[index]
    memory = nvml.nvmlDeviceGetMemoryInfo(me)
    major, minor = _ask(nvml, lambda: tuple(nvml.nvmlDeviceGetCudaComputeCapability(me)), (0, 0))
    return Gpu(
        index=index,
        uuid=_text(_ask(nvml, lambda: nvml.nvmlDeviceGetUUID(me), "")),
        name=_text(_ask(nvml, lambda: nvml.nvmlDeviceGetName(me), "")),
        memory_total=int(memory.total),
        memory_used=int(memory.used),
        processes=_processes(nvml, me),
        links=tuple(Link(other, _link(nvml, me, handles[other])) for other in range(len(handles)) if other != index),
        numa_node=_ask(nvml, lambda: int(nvml.nvmlDeviceGetNumaNodeId(me)), None),
        pci_bus=_text(_ask(nvml, lambda: nvml.nvmlDeviceGetPciInfo(me).busId, "")),
        sm_clock=_ask(nvml, lambda: int(nvml.nvmlDeviceGetClockInfo(me, nvml.NVML_CLOCK_SM)), 0),
        sm_clock_max=_ask(nvml, lambda: int(nvml.nvmlDeviceGetMaxClockInfo(me, nvml.NVML_CLOCK_SM)), 0),
        power_watts=_ask(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(me) / 1000, 0.0),
        power_limit_watts=_ask(nvml, lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(me) / 1000, 0.0),
        power_default_watts=_ask(nvml, lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(me) / 1000, 0.0),
        temperature=_ask(nvml, lambda: int(nvml.nvmlDeviceGetTemperature(me, nvml.NVML_TEMPERATURE_GPU)), 0),
        utilisation=_ask(nvml, lambda: int(nvml.nvmlDeviceGetUtilizationRates(me).gpu), 0),
        throttle=_throttle(nvml, me),
        persistence=_ask(nvml, lambda: bool(nvml.nvmlDeviceGetPersistenceMode(me)), None),
        ecc_errors=_ask(
            nvml,
            lambda: int(
                nvml.nvmlDeviceGetTotalEccErrors(me, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
            ),
            None,
        ),
        mig=_ask(nvml, lambda: bool(nvml.nvmlDeviceGetMigMode(me)[0]), False),
        compute_capability=f"{major}.{minor}" if major else "",
    )


def _processes(nvml: ModuleType, handle: object) -> tuple[GpuProcess, ...]:
    nothing: list[Any] = []
    running = _ask(nvml, lambda: list(nvml.nvmlDeviceGetComputeRunningProcesses(handle)), nothing)
    return tuple(_process(nvml, int(item.pid), int(item.usedGpuMemory or 0)) for item in running)


def _process(nvml: ModuleType, pid: int, memory: int) -> GpuProcess:
    return GpuProcess(pid, memory, _text(_ask(nvml, lambda: nvml.nvmlSystemGetProcessName(pid), "")))


def _link(nvml: ModuleType, one: object, other: object) -> str:
    peer = _ask(nvml, lambda: int(nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)), -1)
    if peer == _ask(nvml, lambda: int(nvml.NVML_P2P_STATUS_OK), 0):
        return "nvlink"
    level = _ask(nvml, lambda: int(nvml.nvmlDeviceGetTopologyCommonAncestor(one, other)), -1)
    across = _ask(nvml, lambda: int(nvml.NVML_TOPOLOGY_SYSTEM), 50)  # below it a host bridge or one socket is between
    return "numa" if level >= across else "pcie"


_THROTTLES = (
    ("power cap", "nvmlClocksEventReasonSwPowerCap", "nvmlClocksThrottleReasonSwPowerCap"),
    ("hardware slowdown", "nvmlClocksEventReasonHwSlowdown", "nvmlClocksThrottleReasonHwSlowdown"),
    ("hot (software)", "nvmlClocksEventReasonSwThermalSlowdown", "nvmlClocksThrottleReasonSwThermalSlowdown"),
    ("hot (hardware)", "nvmlClocksEventReasonHwThermalSlowdown", "nvmlClocksThrottleReasonHwThermalSlowdown"),
    ("power brake", "nvmlClocksEventReasonHwPowerBrakeSlowdown", "nvmlClocksThrottleReasonHwPowerBrakeSlowdown"),
)


def _throttle(nvml: ModuleType, handle: object) -> tuple[str, ...]:
    mask = _ask(nvml, lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)), 0)
    words = []
    for word, *names in _THROTTLES:
        bit = next((int(getattr(nvml, name)) for name in names if hasattr(nvml, name)), 0)
        if mask & bit:
            words.append(word)
    return tuple(words)


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
