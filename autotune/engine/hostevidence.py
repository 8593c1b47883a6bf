"""What the host saw of a start: its kernel log and the error counters of the GPUs, from the start to the failure."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autotune.engine.failure_context import host_evidence
from autotune.engine.failure_values import Failure, FailureContext
from autotune.engine.gpumemory import GpuWatch
from autotune.engine.kernellog import KernelFindings, OomKill, Xid, read_kernel_log

NVML_SECONDS = 2.0
"""What the GPU counters may take: NVML can hang for a card that has fallen off the bus."""
RECORD = 8192
"""Bytes of the longest record that the kernel gives out."""
RECORDS = 1_000_000
"""Bound of one reading, in records; the largest ring holds fewer."""
FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the host's own process namespace (PROC_PID_INIT_INO); elsewhere the kernel log's pids are not ours."""


class KernelLog(Protocol):
    """Where kernel messages come from."""

    def mark(self) -> int:
        """The place where the log ends now. Never raises."""

    def since(self, mark: int) -> list[str]:
        """The kernel's messages from that place on, oldest first; empty where it may not be read. Never raises."""


@dataclass(frozen=True)
class Kmsg:
    """The kernel's own device, read without waiting. A record is ``priority,sequence,time,flags;message``."""

    path: Path = Path("/dev/kmsg")

    def mark(self) -> int:
        """See `KernelLog`."""
        last = -1
        for _, sequence, _ in self._records():
            last = sequence
        return last + 1

    def since(self, mark: int) -> list[str]:
        """See `KernelLog`. What a program wrote there (a facility other than 0) is no word of the kernel."""
        return [text for facility, sequence, text in self._records() if sequence >= mark and facility == 0]

    def _records(self) -> Iterator[tuple[int, int, str]]:
        """Facility, sequence number and first line of every record in the ring."""
        try:
            device = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # no such device, or it is root's alone (dmesg_restrict)
            return
        try:
            for _ in range(RECORDS):
                try:
                    record = os.read(device, RECORD)
                except BrokenPipeError:  # overwritten while it was read: the next one follows
                    continue
                except OSError:  # EAGAIN: the end
                    return
                if not record:
                    return
                head, _, text = record.decode(errors="replace").partition(";")
                fields = head.split(",")
                if len(fields) > 1 and fields[0].isdigit() and fields[1].isdigit():
                    yield int(fields[0]) >> 3, int(fields[1]), text.partition("\n")[0]
        finally:
            os.close(device)


class HostWatch:
    """Notes how the host stands before a start, and weighs a failure by what has happened since.

    Args:
        memory: the leased GPUs as they were before the start.
        kernel: the kernel log.
        own_namespace: whether pids of the kernel log are pids here; default: look.
    """

    def __init__(self, memory: GpuWatch, kernel: KernelLog | None = None, *, own_namespace: bool | None = None) -> None:
        self._memory = memory
        self._kernel = kernel or Kmsg()
        self._mark = self._kernel.mark()
        self._host_pids = _host_pids() if own_namespace is None else own_namespace

    def weigh(self, failure: Failure, exit_code: int | None, pids: Iterable[int]) -> Failure:
        """`failure`, or what the host did to the engine; `pids` are all processes that the engine had. Never raises."""
        found = read_kernel_log(self._kernel.since(self._mark))
        findings = KernelFindings(self._xids(found.xids), self._kills(found.oom_kills, frozenset(pids)))
        ecc, codes = self._reported()
        context = FailureContext(kernel=findings, xids=codes, ecc_uncorrected=ecc)
        return host_evidence(failure, exit_code, context)

    def _xids(self, xids: Iterable[Xid]) -> tuple[Xid, ...]:
        """Those of the leased cards; a fault of another card of the host is no fault of this trial."""
        mine = {bus_address(bus) for bus in self._memory.buses}
        return tuple(xid for xid in xids if bus_address(xid.device) in mine)

    def _kills(self, kills: Iterable[OomKill], pids: frozenset[int]) -> tuple[OomKill, ...]:
        """Those of the engine's processes; all of them where the kernel counts processes otherwise (a container)."""
        return tuple(kill for kill in kills if kill.pid in pids or not self._host_pids)

    def _reported(self) -> tuple[int, tuple[int, ...]]:
        """Uncorrectable errors that the leased cards have counted since the start, and the faults NVML tells of."""
        before = self._memory.ecc
        now: dict[int, int] = {}
        codes: list[int] = []

        def read() -> None:
            codes.extend(event.code for event in self._memory.xids.drain())
            if before:
                now.update({gpu.index: gpu.ecc_errors or 0 for gpu in self._memory.reader.read().gpus})

        if self._memory.buses or before:
            reading = threading.Thread(target=read, daemon=True)
            reading.start()
            reading.join(NVML_SECONDS)
        grown = sum(max(0, count - before[index]) for index, count in list(now.items()) if index in before)
        return grown, tuple(codes)


def bus_address(text: str) -> tuple[int, ...]:
    """Domain, bus and device of a card, as the driver (``PCI:0000:44:00``) or NVML (``00000000:44:00.0``) names it."""
    words = text.upper().removeprefix("PCI:").partition(".")[0].split(":")
    try:
        numbers = [int(word, 16) for word in words]
    except ValueError:
        return ()
    return tuple(numbers if len(numbers) == 3 else [0, *numbers])


def _host_pids() -> bool:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == FIRST_PID_NAMESPACE
    except OSError:
        return False
