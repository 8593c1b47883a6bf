"""GPU faults from NVML's events: read without waiting, silent where nothing can be told, given back at the end."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

from autotune.host.xids import NvmlXids, XidEvent


@dataclass
class FakeNvml:
    """The part of NVML that is used, with the real module's constants and errors."""

    events: list[tuple[int, int, int]] = field(default_factory=list)
    """Card, kind of event, data."""
    can_watch: bool = True
    driver: bool = True
    open_sets: int = 0
    sessions: int = 0
    watched: list[int] = field(default_factory=list)
    NVMLError = pynvml.NVMLError
    nvmlEventTypeXidCriticalError = pynvml.nvmlEventTypeXidCriticalError

    def nvmlInit(self) -> None:
        if not self.driver:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        self.sessions += 1

    def nvmlShutdown(self) -> None:
        self.sessions -= 1

    def nvmlEventSetCreate(self) -> str:
        if not self.can_watch:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        self.open_sets += 1
        return "set"

    def nvmlEventSetFree(self, events: str) -> None:
        self.open_sets -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetIndex(self, handle: int) -> int:
        return handle

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: str) -> None:
        assert kinds == self.nvmlEventTypeXidCriticalError
        self.watched.append(handle)

    def nvmlEventSetWait_v2(self, events: str, timeout_ms: int) -> Any:
        assert timeout_ms == 0, "a failed start is not kept waiting"
        if not self.events:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        device, kind, data = self.events.pop(0)
        return SimpleNamespace(device=device, eventType=kind, eventData=data)


def test_faults_since_the_last_look_are_told_once() -> None:
    nvml = FakeNvml()
    watch = NvmlXids((0, 3), lambda: nvml)
    assert watch.watching and nvml.watched == [0, 3]
    kind = nvml.nvmlEventTypeXidCriticalError
    nvml.events += [(3, kind, 79), (0, pynvml.nvmlEventTypeClock, 1), (0, kind, 31)]
    assert watch.drain() == (XidEvent(3, 79), XidEvent(0, 31))
    assert watch.drain() == ()


def test_a_card_that_reports_without_end_ends() -> None:
    nvml = FakeNvml(events=[(0, pynvml.nvmlEventTypeXidCriticalError, 79)] * 5000)
    assert len(NvmlXids((0,), lambda: nvml).drain()) == 1000


def test_without_driver_or_right_nothing_is_told_and_nothing_stays_open() -> None:
    for nvml in (FakeNvml(driver=False), FakeNvml(can_watch=False)):
        watch = NvmlXids((0,), lambda nvml=nvml: nvml)
        assert not watch.watching and watch.drain() == ()
        assert nvml.sessions == 0


def test_the_watch_is_given_back() -> None:
    nvml = FakeNvml()
    watch = NvmlXids((0,), lambda: nvml)
    assert (nvml.open_sets, nvml.sessions) == (1, 1)
    del watch
    gc.collect()
    assert (nvml.open_sets, nvml.sessions) == (0, 0)


def test_the_real_nvml_never_fails() -> None:
    assert NvmlXids((0,)).drain() == ()
