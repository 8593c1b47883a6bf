"""GPU faults (Xid) that the driver reports while somebody watches. NVML tells them also where the kernel log may not be
read, as in most containers."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

MOST = 1000
"""Events that are taken out at once at most; a card that falls off the bus can report without end."""


@dataclass(frozen=True, slots=True)
class XidEvent:
    """A fault of a card: its NVML index and NVIDIA's number of the fault."""

    index: int
    code: int


class XidReader(Protocol):
    """What a card has reported since the watch began."""

    def drain(self) -> tuple[XidEvent, ...]:
        """The events since the last call, oldest first. Never raises."""


class NoXids:
    """A watch without cards."""

    def drain(self) -> tuple[XidEvent, ...]:
        """See `XidReader`."""
        return ()


class NvmlXids:
    """Watches cards through NVML from the moment it is made; silent where driver or card cannot report.

    Args:
        indices: NVML indices of the cards.
        load: gives the NVML module; a test gives one of its own.
    """

    def __init__(self, indices: Iterable[int], load: Callable[[], Any] | None = None) -> None:
        self._lock = threading.Lock()
        self._events: Any = None
        self._nvml: Any = None
        try:
            self._nvml = nvml = (load or _nvml)()
            nvml.nvmlInit()
        except Exception:  # no NVML, no driver
            return
        try:
            self._open(nvml, tuple(indices))
        except nvml.NVMLError:
            nvml.nvmlShutdown()

    def _open(self, nvml: Any, indices: tuple[int, ...]) -> None:
        events = nvml.nvmlEventSetCreate()
        watched = 0
        for index in indices:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            with contextlib.suppress(nvml.NVMLError):  # not every card can
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
                watched += 1
        self._events = events
        weakref.finalize(self, _close, nvml, events)

    @property
    def watching(self) -> bool:
        """Whether the driver lets us watch at all."""
        return self._events is not None

    def drain(self) -> tuple[XidEvent, ...]:
        """See `XidReader`."""
        if self._events is None:
            return ()
        nvml, found = self._nvml, []
        with self._lock, contextlib.suppress(nvml.NVMLError):  # NVMLError_Timeout: nothing more
            for _ in range(MOST):
                data = nvml.nvmlEventSetWait_v2(self._events, 0)
                if data.eventType & nvml.nvmlEventTypeXidCriticalError:
                    found.append(XidEvent(nvml.nvmlDeviceGetIndex(data.device), int(data.eventData)))
        return tuple(found)


def _nvml() -> Any:
    import pynvml

    return pynvml


def _close(nvml: Any, events: Any) -> None:
    with contextlib.suppress(nvml.NVMLError):
        nvml.nvmlEventSetFree(events)
        nvml.nvmlShutdown()
