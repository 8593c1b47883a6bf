"""What the host did is looked at before a configuration is blamed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from autotune.engine import hostevidence, verdicts
from autotune.engine.enginelog import LogFollower
from autotune.engine.failure_values import Action, Cause, Failure, FailureClass
from autotune.engine.failures import classify
from autotune.engine.gpumemory import gpu_watch
from autotune.engine.hostevidence import HostWatch, Kmsg, bus_address
from autotune.engine.process import failure_context
from autotune.engine.stages import Stage
from autotune.host.gpus import FakeGpus, Gpu, GpuHost
from autotune.host.xids import XidEvent
from autotune.space.config import EngineConfig

OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
LOST = "NVRM: Xid (PCI:0000:44:00): 79, pid=1, GPU has fallen off the bus."
KILL = "Out of memory: Killed process 77 (VLLM::Worker) total-vm:1kB"
DIED = verdicts.died(Stage.SERVING, -9)


@dataclass
class FakeKernelLog:
    """Messages that come after the start."""

    earlier: list[str] = field(default_factory=list)
    later: list[str] = field(default_factory=list)

    def mark(self) -> int:
        return len(self.earlier)

    def since(self, mark: int) -> list[str]:
        return [*self.earlier, *self.later][mark:]


def card(ecc: int | None = 0) -> GpuHost:
    return GpuHost((Gpu(0, "GPU-1", "H100", 80 << 30, 0, pci_bus="00000000:44:00.0", ecc_errors=ecc),))


def oom() -> Failure:
    return classify(["(EngineCore pid=1) ERROR 11-20 10:00:00 [core.py:1] " + OUT_OF_MEMORY])


def host(kernel: FakeKernelLog, *hosts: GpuHost, own_namespace: bool = True) -> HostWatch:
    gpus = FakeGpus(list(hosts)) if hosts else FakeGpus()
    return HostWatch(gpu_watch((0,) if hosts else (), gpus), kernel, own_namespace=own_namespace)


def test_a_lost_card_is_no_bad_configuration() -> None:
    assert oom().cause is Cause.CONFIG
    failure = host(FakeKernelLog(later=[LOST]), card()).weigh(oom(), 1, ())
    assert (failure.failure_class, failure.cause, failure.action) == (
        FailureClass.GPU_HARDWARE,
        Cause.ENVIRONMENT,
        Action.STOP,
    )
    assert "fallen off the bus" in failure.reason


def test_what_was_before_the_start_or_on_another_card_says_nothing() -> None:
    elsewhere = LOST.replace(":44:", ":45:")
    for kernel in (FakeKernelLog(earlier=[LOST]), FakeKernelLog(later=[elsewhere]), FakeKernelLog()):
        assert host(kernel, card()).weigh(oom(), 1, ()) == oom()
    assert host(FakeKernelLog(later=[LOST])).weigh(oom(), 1, ()) == oom(), "a start without a GPU"


@dataclass
class FakeXids:
    """What NVML tells of the leased cards."""

    codes: tuple[int, ...]

    def drain(self) -> tuple[XidEvent, ...]:
        return tuple(XidEvent(0, code) for code in self.codes)


@pytest.mark.parametrize(("code", "blamed"), [(79, True), (48, True), (31, False), (13, False)])
def test_a_fault_that_only_nvml_tells_is_seen(code: int, blamed: bool) -> None:
    """In most containers the kernel log may not be read."""
    watch = HostWatch(gpu_watch((0,), FakeGpus([card()]), FakeXids((code,))), FakeKernelLog(), own_namespace=True)
    failure = watch.weigh(oom(), 1, ())
    assert (failure.failure_class is FailureClass.GPU_HARDWARE) == blamed
    if blamed:
        assert failure.action is Action.STOP and f"Xid {code}" in failure.reason


@pytest.mark.parametrize(("before", "after", "blamed"), [(2, 3, True), (2, 2, False), (None, 4, False), (2, 0, False)])
def test_only_new_uncorrectable_errors_count(before: int | None, after: int, blamed: bool) -> None:
    failure = host(FakeKernelLog(), card(before), card(after)).weigh(oom(), 1, ())
    assert (failure.failure_class is FailureClass.GPU_HARDWARE) is blamed


def test_counters_that_hang_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    @dataclass
    class Hanging(FakeGpus):
        def read(self) -> GpuHost:
            if self.reads:
                ended.wait(30)
            return super().read()

    monkeypatch.setattr(hostevidence, "NVML_SECONDS", 0.05)
    watch = HostWatch(gpu_watch((0,), Hanging([card()])), FakeKernelLog())
    began = time.monotonic()
    assert watch.weigh(oom(), 1, ()) == oom()
    assert time.monotonic() - began < 5
    ended.set()


@pytest.mark.parametrize(
    ("pids", "own_namespace", "expected"),
    [
        ((76, 77), True, FailureClass.HOST_OOM),
        ((76,), True, FailureClass.KILLED),
        ((76,), False, FailureClass.HOST_OOM),
    ],
)
def test_the_kernel_s_kill_of_one_of_ours(pids: tuple[int, ...], own_namespace: bool, expected: FailureClass) -> None:
    watch = host(FakeKernelLog(later=[KILL]), own_namespace=own_namespace)
    assert watch.weigh(DIED, -9, pids).failure_class is expected


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Kmsg]:
    """A device that gives a record a read, as the kernel's does, on a real descriptor."""

    def make(*records: bytes | OSError) -> Kmsg:
        waiting: dict[int, list[bytes | OSError]] = {}
        plain = os.read

        def read(descriptor: int, size: int) -> bytes:
            if str(Path(f"/proc/self/fd/{descriptor}").readlink()) != os.devnull:
                return plain(descriptor, size)
            queue = waiting.setdefault(descriptor, list(records))
            if not queue:
                del waiting[descriptor]
                raise BlockingIOError
            record = queue.pop(0)
            if isinstance(record, OSError):
                raise record
            return record

        monkeypatch.setattr("autotune.engine.hostevidence.os.read", read)
        return Kmsg(Path(os.devnull))

    return make


def test_records_of_the_kernel(device: Callable[..., Kmsg]) -> None:
    log = device(
        b"6,10,100,-;usb 1-1: new device\n SUBSYSTEM=usb\n",
        BrokenPipeError(),
        b"garbage\n",
        b"12,11,200,-;NVRM: Xid (PCI:0): 79, a program wrote this\n",
        b"3,12,300,-,caller=T1;" + LOST.encode() + b"\n",
    )
    assert log.mark() == 13
    assert log.since(0) == ["usb 1-1: new device", LOST]
    assert log.since(11) == [LOST]
    assert log.since(13) == []


def test_a_log_that_may_not_be_read(tmp_path: Path) -> None:
    log = Kmsg(tmp_path / "missing")
    assert log.mark() == 0
    assert log.since(0) == []


def test_the_real_device_ends_at_once() -> None:
    began = time.monotonic()
    Kmsg().since(Kmsg().mark())
    assert time.monotonic() - began < 5


def test_addresses_of_cards() -> None:
    assert bus_address("PCI:0000:44:00") == bus_address("00000000:44:00.0") == (0, 0x44, 0)
    assert bus_address("PCI:0000:AF:00") == bus_address("0000:af:00.0")
    assert bus_address("no address") == ()


def test_a_start_that_ends_at_vllm_s_own_time_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "engine.log"
    log.write_text("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n")
    context = failure_context(EngineConfig(), gpu_watch(()), {"VLLM_ENGINE_READY_TIMEOUT_S": "1200"})
    assert context.ready_timeout_s == 1200
    clock = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    follower = LogFollower(log, context=context)
    clock[0] += 1201.0
    assert follower.classify(DIED, exit_code=1).failure_class is FailureClass.READY_TIMEOUT
    early = LogFollower(log, context=context)
    clock[0] += 30.0
    assert early.classify(DIED, exit_code=1).failure_class is not FailureClass.READY_TIMEOUT
    plain = failure_context(EngineConfig(), gpu_watch(()), {"VLLM_ENGINE_READY_TIMEOUT_S": "soon"})
    assert plain.ready_timeout_s == 600
