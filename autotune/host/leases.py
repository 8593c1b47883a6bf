"""Leases on GPUs and ports, so that several studies on a host do not meet on one.

One JSON file a resource in ``<state>/leases``, all changes under one file lock that is held for milliseconds. A lease
belongs to a process by pid, start time and boot: what a killed study left is free at once, without anybody cleaning.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from autotune.errors import EnvironmentFault
from autotune.host.gpus import Gpu, GpuHost, read_gpus
from autotune.host.processes import ProcessId, command_line
from autotune.host.state import state_dir
from autotune.host.topology import nearest

PORTS = range(18_000, 31_000)
"""Below the range that Linux takes for outgoing connections, so none of those can take a leased port."""
LOCK_SECONDS = 30.0
FOREIGN_BYTES = 512 << 20
"""A process of somebody else with more than this on a GPU keeps us off it."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a resource: `gpu-<uuid>` or `port-<number>`."""

    resource: str
    process: ProcessId
    study: str
    since: float


@dataclass(frozen=True, slots=True)
class ForeignUse:
    """A process on a GPU that is none of ours. It is named and never touched."""

    gpu: int
    pid: int
    memory: int
    name: str

    def __str__(self) -> str:
        return f"GPU {self.gpu}: process {self.pid} ({self.name or '?'}) holds {self.memory / 2**30:.1f} GiB"


class LeaseBook:
    """All leases of a host.

    Args:
        folder: where they lie; default: the state folder's `leases`.
        alive: whether a process still runs; for tests.
    """

    def __init__(self, folder: Path | None = None, *, alive: Callable[[ProcessId], bool] | None = None) -> None:
        self._folder = folder or state_dir() / "leases"
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = FileLock(self._folder / "leases.lock")
        self._alive = alive or (lambda process: process.alive)

    def holders(self) -> tuple[Holder, ...]:
        """Who holds what now; what dead processes left is removed."""
        with self._locked():
            return tuple(self._read())

    def take(self, resources: Sequence[str], study: str) -> tuple[Holder, ...]:
        """Take all of `resources` or none.

        Returns:
            Nothing where all were free and are ours now, else those who hold some of them.
        """
        me = ProcessId.of(os.getpid()) or ProcessId(os.getpid(), 0)
        with self._locked():
            held = [holder for holder in self._read() if holder.resource in resources]
            if not held:
                for resource in resources:
                    self._write(Holder(resource, me, study, time.time()))
            return tuple(held)

    def give_back(self, resources: Iterable[str]) -> None:
        """Release what this process holds; what it does not hold stays."""
        with self._locked():
            mine = {holder.resource for holder in self._read() if holder.process.pid == os.getpid()}
            for resource in mine.intersection(resources):
                self._path(resource).unlink(missing_ok=True)

    def take_port(self, study: str) -> int:
        """A port on loopback that nobody holds or listens on.

        Raises:
            EnvironmentFault: none is free.
        """
        for port in random.sample(PORTS, 200):
            if _bindable(port) and not self.take((f"port-{port}",), study):
                return port
        raise EnvironmentFault(
            f"no free port between {PORTS.start} and {PORTS.stop}", hint="End servers that are no longer needed."
        )

    def _locked(self) -> AbstractContextManager[object]:
        try:
            return self._lock.acquire(timeout=LOCK_SECONDS)
        except (Timeout, OSError) as error:
            raise EnvironmentFault(
                f"the lease file {self._lock.lock_file} cannot be locked: {error}",
                hint="Check that the folder is writable and on a local disk, or set AUTOTUNE_STATE to another one.",
            ) from None

    def _read(self) -> list[Holder]:
        found = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                data = json.loads(path.read_text())
                process = ProcessId(int(data["process"]["pid"]), int(data["process"]["ticks"]), data["process"]["boot"])
                holder = Holder(data["resource"], process, data["study"], float(data["since"]))
            except FileNotFoundError:
                continue
            except (OSError, ValueError, KeyError, TypeError):
                path.unlink(missing_ok=True)  # half written by a crash of the host: nobody holds it
                continue
            if self._alive(holder.process):
                found.append(holder)
            else:
                path.unlink(missing_ok=True)
        return found

    def _write(self, holder: Holder) -> None:
        path = self._path(holder.resource)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(asdict(holder)))
        partial.replace(path)

    def _path(self, resource: str) -> Path:
        return self._folder / f"{resource}.json"


@dataclass(frozen=True, slots=True)
class Leased:
    """GPUs (NVML indices, neighbours near each other) and the port that a trial may use, and the leases' names."""

    gpus: tuple[int, ...]
    port: int
    resources: tuple[str, ...]


def acquire(
    count: int,
    study: str,
    *,
    devices: Sequence[int] | None = None,
    book: LeaseBook | None = None,
    host: GpuHost | None = None,
) -> Leased:
    """Lease `count` GPUs that nobody uses, and a port.

    Args:
        count: number of GPUs; 0 leases a port only.
        study: name, for the message that others get.
        devices: NVML indices to choose from; default: all.
        book: where leases are kept.
        host: the GPUs as read before; default: read now.

    Raises:
        EnvironmentFault: there are not so many free GPUs; says who holds them.
    """
    book = book or LeaseBook()
    gpus, resources = _free_gpus(count, study, devices, book, host) if count else ((), ())
    try:
        port = book.take_port(study)
    except BaseException:
        book.give_back(resources)
        raise
    return Leased(gpus, port, (*resources, f"port-{port}"))


def release(leased: Leased, book: LeaseBook | None = None) -> None:
    """Give a lease back."""
    (book or LeaseBook()).give_back(leased.resources)


@asynccontextmanager
async def leased(
    count: int, study: str, *, devices: Sequence[int] | None = None, book: LeaseBook | None = None
) -> AsyncIterator[Leased]:
    """`acquire` for the length of a block.

    Raises:
        EnvironmentFault: as `acquire`.
    """
    kept = book or LeaseBook()
    mine = await asyncio.to_thread(acquire, count, study, devices=devices, book=kept)
    try:
        yield mine
    finally:
        await asyncio.to_thread(release, mine, kept)


def foreign_uses(host: GpuHost, ours: Iterable[int] = ()) -> tuple[ForeignUse, ...]:
    """Processes on GPUs that are not `ours`."""
    mine = frozenset(ours)
    return tuple(
        ForeignUse(gpu.index, process.pid, process.memory, process.name or command_line(process.pid)[:80])
        for gpu in host.gpus
        for process in gpu.processes
        if process.pid not in mine
    )


def _free_gpus(
    count: int, study: str, devices: Sequence[int] | None, book: LeaseBook, host: GpuHost | None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    host = host or read_gpus()
    wanted = [gpu for gpu in host.gpus if devices is None or gpu.index in devices]
    if len(wanted) < count:
        raise EnvironmentFault(
            f"the study wants {count} GPUs and this host shows {len(wanted)}"
            + (f" ({host.problem})" if host.problem else ""),
            hint="Correct `hardware.gpus` or `hardware.devices`; `autotune doctor` shows what NVML sees.",
        )
    busy = [use for use in foreign_uses(host) if use.memory > FOREIGN_BYTES]
    idle = [gpu for gpu in wanted if gpu.index not in {use.gpu for use in busy}]
    taken = {holder.resource: holder for holder in book.holders()}
    free = [gpu for gpu in idle if _name(gpu) not in taken]
    while len(free) >= count:
        chosen = nearest(free, count)
        resources = tuple(_name(gpu) for gpu in chosen)
        if not book.take(resources, study):
            return tuple(gpu.index for gpu in chosen), resources
        taken = {holder.resource: holder for holder in book.holders()}
        free = [gpu for gpu in idle if _name(gpu) not in taken]
    held = [f"{taken[_name(gpu)].study} (pid {taken[_name(gpu)].process.pid})" for gpu in idle if _name(gpu) in taken]
    words = [*map(str, busy), *(f"leased by {who}" for who in held)]
    raise EnvironmentFault(
        f"{count} free GPUs wanted, {len(free)} found: " + "; ".join(words),
        hint="Wait for them, or choose others with `hardware.devices`. Foreign processes are never touched.",
    )


def _name(gpu: Gpu) -> str:
    return f"gpu-{gpu.uuid or gpu.index}"


def _bindable(port: int) -> bool:
    with socket.socket() as trial:
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
