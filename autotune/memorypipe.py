"""Two transports that are the ends of one connection in memory: what one writes, the protocol of the other receives."""

from __future__ import annotations

import asyncio
from typing import Any, cast


class MemoryTransport(asyncio.Transport):
    """One end. Bytes and ends arrive in the order in which they were sent, at the loop's next turn; nothing is lost,
    and nothing waits but for a reader that pauses."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._other: MemoryTransport | None = None
        self._closing = False
        self._paused = False
        self._kept: list[bytes | None] = []

    def join(self, other: MemoryTransport) -> None:
        """Say which end is the other one."""
        self._other = other

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """There is no socket and no peer that has a name."""
        return default

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send; to an end that has gone, nothing."""
        if data and not self._closing and self._other is not None:
            self._loop.call_soon(self._other._arrive, bytes(data))

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is buffered on this side."""

    def is_reading(self) -> bool:
        return not self._paused

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        kept, self._kept = self._kept, []
        for data in kept:
            self._arrive(data)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """End the connection on both sides; what was written before still arrives."""
        if self._closing:
            return
        self._closing = True
        self._loop.call_soon(self._protocol.connection_lost, None)
        if self._other is not None:
            self._loop.call_soon(self._other._arrive, None)

    def abort(self) -> None:
        self.close()

    def _arrive(self, data: bytes | None) -> None:
        """Bytes of the other end, or its end."""
        if self._closing:
            return
        if self._paused:
            self._kept.append(data)
        elif data is None:
            cast(asyncio.Protocol, self._protocol).eof_received()
            self.close()
        else:
            cast(asyncio.Protocol, self._protocol).data_received(data)


def connected(
    loop: asyncio.AbstractEventLoop, one: asyncio.BaseProtocol, other: asyncio.BaseProtocol
) -> tuple[MemoryTransport, MemoryTransport]:
    """The two ends of a new connection; the protocols are still to be told of them."""
    ends = MemoryTransport(loop, one), MemoryTransport(loop, other)
    ends[0].join(ends[1])
    ends[1].join(ends[0])
    return ends
