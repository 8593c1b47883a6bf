"""Virtual time: an event loop whose clock stands still while it computes and jumps to the next timer where it waits.

What runs on it takes no longer than its computing and happens in the same order at the same times whenever it is
repeated: nothing comes from outside. Connections are made in memory, to servers on the same loop; what would go to a
thread is done at once. Code that asks `now` for the time, `asyncio` for its waits and the loop for its connections runs
unchanged on the wall clock and on this one.
"""

from __future__ import annotations

import asyncio
import errno
import selectors
import socket
import time
from asyncio import events
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from autotune.memorypipe import connected

T = TypeVar("T")

BEGIN = 1.0
"""Seconds on the clock of a new loop; 0 would read as "never" where a time of 0 stands for that."""
TURN = 1e-8
"""Seconds that a turn of the loop takes. Timers may be early by a nanosecond, and whoever finds himself early and asks
for the next turn would do so for ever if no time passed."""
LOOKS_OUTSIDE = 64
"""Turns between two looks for somebody who interrupts from another thread; each is a system call."""


def now() -> float:
    """Monotonic seconds: on the clock of the running loop where it is virtual, else the host's."""
    loop = events._get_running_loop()
    return loop.time() if isinstance(loop, VirtualLoop) else time.monotonic()


def time_of_day() -> float:
    """Seconds since 1970: the host's, or what a clock on the wall would say in virtual time."""
    loop = events._get_running_loop()
    return loop.began_at + loop.time() - BEGIN if isinstance(loop, VirtualLoop) else time.time()


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for nothing: a wait is added to the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = BEGIN
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """See `selectors.BaseSelector.select`. Without any timer only another thread can go on."""
        if timeout is None:
            return super().select(None)
        self._turns += 1
        if self._turns % LOOKS_OUTSIDE == 0 and (ready := super().select(0)):
            return ready
        self.seconds += max(0.0, timeout) + TURN
        return []


class MemoryServer:
    """What `create_server` returns: takes connections until it is closed."""

    def __init__(self, open_ports: dict[int, Callable[[], asyncio.BaseProtocol]], port: int) -> None:
        self._open_ports, self._port = open_ports, port

    def close(self) -> None:
        self._open_ports.pop(self._port, None)

    async def wait_closed(self) -> None:
        return None

    def is_serving(self) -> bool:
        return self._port in self._open_ports


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time. Ports are those of its own servers; a socket that it is given is only a number.

    Args:
        began_at: time of day at its beginning, seconds since 1970.
    """

    def __init__(self, began_at: float = 0.0) -> None:
        self.began_at = began_at
        self._jumps = _JumpingSelector()
        self._servers: dict[int, Callable[[], asyncio.BaseProtocol]] = {}
        self._dialled: dict[int, int] = {}
        super().__init__(self._jumps)

    def time(self) -> float:
        """Virtual seconds."""
        return self._jumps.seconds

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], *_: object, sock: socket.socket, **__: object
    ) -> MemoryServer:
        """Serve at the port that `sock` is bound to; it never listens, so nobody outside can connect."""
        port: int = sock.getsockname()[1]
        self._servers[port] = protocol_factory
        return MemoryServer(self._servers, port)

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        """Remember where `sock` is to lead; `create_connection` makes the connection.

        Raises:
            ConnectionRefusedError: no server of this loop has that port.
        """
        self._accepting(address[1])
        self._dialled[sock.fileno()] = address[1]

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        sock: socket.socket | None = None,
        **_: object,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect to a server of this loop.

        Raises:
            ConnectionRefusedError: there is none at that port.
        """
        if sock is not None:
            port = self._dialled.pop(sock.fileno())
            sock.close()
        protocol, serving = protocol_factory(), self._accepting(port or 0)()
        transport, theirs = connected(self, protocol, serving)
        serving.connection_made(theirs)
        protocol.connection_made(transport)
        return transport, protocol

    def _accepting(self, port: int) -> Callable[[], asyncio.BaseProtocol]:
        if port not in self._servers:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nothing listens on port {port}")
        return self._servers[port]

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Call it at once: a thread would end at a time that is another at every run."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


class _Inside:
    """Work on a virtual loop in a thread, and how another thread interrupts it."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]], began_at: float) -> None:
        self._work = work
        self._loop = VirtualLoop(began_at)
        self._task: asyncio.Task[object] | None = None
        self._interrupted = False

    def run(self) -> object:
        """Run it to its end.

        Raises:
            asyncio.CancelledError: it was interrupted.
        """
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            return runner.run(self._noted())

    async def _noted(self) -> object:
        self._task = asyncio.current_task()
        if self._interrupted:
            raise asyncio.CancelledError
        return await self._work()

    def interrupt(self) -> None:
        """Cancel it, from whatever thread."""
        self._interrupted = True
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


async def in_virtual_time(work: Callable[[], Coroutine[Any, Any, T]], began_at: float = 0.0) -> T:
    """Run `work` on a virtual loop of its own, in a thread, while the running loop goes on.

    `began_at` is the time of day at its beginning. Cancelled, it cancels `work`, waits for it and passes that on.
    """
    inside = _Inside(work, began_at)
    thread = asyncio.ensure_future(asyncio.to_thread(_outcome, inside.run))
    interrupted = False
    while not thread.done():
        try:
            await asyncio.shield(thread)
        except asyncio.CancelledError:
            interrupted = True
            inside.interrupt()
    result, error = thread.result()
    if interrupted:
        raise asyncio.CancelledError
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


def _outcome(call: Callable[[], object]) -> tuple[object, BaseException | None]:
    try:
        return call(), None
    except BaseException as error:
        return None, error
