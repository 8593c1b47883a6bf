"""What the kernel log says about GPUs and killed processes. Pure: the caller reads ``dmesg`` or the journal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_XID = re.compile(r"NVRM: Xid \((?P<device>[^)]*)\):\s*(?P<code>\d+)(?P<rest>.*)")
_OOM_KILLED = re.compile(
    r"(?:Out of memory|Memory cgroup out of memory): Killed process (?P<pid>\d+) \((?P<name>[^)]*)\)(?P<rest>.*)"
)
_OOM_REPORT = re.compile(r"oom-kill:.*?\btask=(?P<name>[^,]*),pid=(?P<pid>\d+)")

GPU_LOST_XIDS = frozenset(
    {46, 48, 54, 56, 57, 58, 61, 62, 64, 74, 79, 92, 94, 95, 109, 110, 119, 120, 136, 140, 143, 154}
)
"""Xids after which the card, its link or its firmware is at fault (NVIDIA's list): believe no trial."""

APPLICATION_XIDS = frozenset({13, 31, 32, 43, 45, 68, 69})
"""Xids that a faulty kernel of the running program can cause as well."""


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the NVIDIA driver reported."""

    code: int
    device: str
    line: str

    @property
    def hardware(self) -> bool:
        """The card is at fault, not the program. An unknown code counts as the program's."""
        return self.code in GPU_LOST_XIDS


@dataclass(frozen=True, slots=True)
class OomKill:
    """A process that the kernel ended for want of memory. ``cgroup``: the limit was a container's."""

    pid: int
    process: str
    cgroup: bool
    line: str


@dataclass(frozen=True, slots=True)
class KernelFindings:
    """What matters to an engine, in the order of the log."""

    xids: tuple[Xid, ...] = ()
    oom_kills: tuple[OomKill, ...] = ()


def read_kernel_log(lines: Iterable[str], *, keep: int = 64) -> KernelFindings:
    """Find Xids and out-of-memory kills in kernel log lines; at most the last ``keep`` of each are kept."""
    xids: list[Xid] = []
    kills: dict[int, OomKill] = {}
    for raw in lines:
        line = raw.strip()[:1000]
        if found := _XID.search(line):
            xids = [*xids[-keep + 1 :], Xid(int(found["code"]), found["device"], line)]
        elif (found := _OOM_KILLED.search(line)) or (found := _OOM_REPORT.search(line)):
            pid = int(found["pid"])
            cgroup = (
                "cgroup out of memory" in line or "CONSTRAINT_MEMCG" in line or (pid in kills and kills[pid].cgroup)
            )
            kills[pid] = OomKill(pid, found["name"], cgroup, line)
            if len(kills) > keep:
                del kills[next(iter(kills))]
    return KernelFindings(tuple(xids), tuple(kills.values()))
