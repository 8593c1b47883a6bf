"""Processes by identity: a pid alone may be another program by now, a pid with its start time may not."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process of one boot of this host.

    Attributes:
        pid: process id.
        ticks: start time in clock ticks since boot (a step of the wall clock does not change it).
        boot: the kernel's boot id; empty where there is none.
    """

    pid: int
    ticks: int
    boot: str = ""

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The identity of a living process, None where `pid` is gone."""
        ticks = start_ticks(pid)
        return None if ticks is None else cls(pid, ticks, boot_id())

    @property
    def alive(self) -> bool:
        """Whether exactly this process still runs (a zombie does not)."""
        return self.boot == boot_id() and start_ticks(self.pid) == self.ticks


def start_ticks(pid: int) -> int | None:
    """Start time of a living process in clock ticks since boot; None where it is gone or a zombie."""
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    if not fields or fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19])


@lru_cache(maxsize=1)
def boot_id() -> str:
    """The kernel's random id of this boot."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def environment_value(pid: int, name: str) -> str | None:
    """One variable that `pid` was started with; None where it is absent or not readable for us."""
    try:
        block = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    key = name.encode() + b"="
    for item in block.split(b"\0"):
        if item.startswith(key):
            return item[len(key) :].decode(errors="replace")
    return None


def own_pids() -> tuple[int, ...]:
    """Living processes of our user."""
    try:
        mine = Path("/proc/self").stat().st_uid
        names = [entry for entry in _PROC.iterdir() if entry.name.isdecimal()]
    except OSError:
        return ()
    found = []
    for entry in names:
        try:
            if entry.stat().st_uid == mine:
                found.append(int(entry.name))
        except OSError:
            continue
    return tuple(found)


def command_line(pid: int) -> str:
    """The command line for a message; empty where it cannot be read."""
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def process_name(pid: int) -> str:
    """The kernel's name of a process, at most 15 characters; empty where it is gone."""
    try:
        return (_PROC / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return ""
