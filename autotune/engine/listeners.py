"""Who listens on a port of this host, and a port that is held until the engine binds it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable
from pathlib import Path

LOOPBACK = "127.0.0.1"
_LISTEN = "0A"


def listening_inodes(port: int) -> frozenset[int]:
    """Inodes of all sockets that listen on `port`, on any address of this network namespace."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if len(fields) > 9 and fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(int(fields[9]))
    return frozenset(found)


def socket_inodes(pids: Iterable[int]) -> frozenset[int]:
    """Inodes of all sockets that these processes have open."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for handle in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    target = str(handle.readlink())
                    if target.startswith("socket:["):
                        found.add(int(target[8:-1]))
    return frozenset(found)


def listens_only(port: int, pids: Iterable[int]) -> bool:
    """Somebody listens on `port`, and every one of them is one of `pids` (a port can be shared with SO_REUSEPORT)."""
    listening = listening_inodes(port)
    return bool(listening) and listening <= socket_inodes(pids)


def can_connect(port: int) -> bool:
    """Something accepts connections on loopback. For hosts whose /proc does not tell."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((LOOPBACK, port)) == 0


class PortHold:
    """A port that is bound but not listened on: nobody is given it by chance, yet the engine can bind it too.

    Linux lets sockets that all have SO_REUSEADDR (or all SO_REUSEPORT and one user) bind one port while none listens;
    asyncio, uvicorn and vLLM set the first, vLLM also the second.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, port: int = 0) -> None:
        if port and listening_inodes(port):
            raise OSError(98, f"port {port} is listened on by another process")
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if hasattr(socket, "SO_REUSEPORT"):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self._socket.bind((LOOPBACK, port))
        except OSError:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Let go; may be called twice."""
        self._socket.close()
