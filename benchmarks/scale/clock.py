"""An event loop whose sleeps take no time: the clock jumps to the next timer.

While code runs, the clock advances by the processor time that it takes: what others do on this machine is no part of a
result. Waiting for the disk is not in it either.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _Jumping(selectors.DefaultSelector):
    """Instead of waiting for a timer, the clock is moved; threads that wake the loop are waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0
        self.waiting_for_threads = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0 or self.waiting_for_threads:
            return super().select(timeout)
        ready = super().select(0)
        if not ready:
            self.skipped += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` is our processor time plus everything that was skipped."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return time.process_time() + self._jumping.skipped

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Work in threads takes real time: no jump while it goes on."""
        self._jumping.waiting_for_threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, _: object) -> None:
        self._jumping.waiting_for_threads -= 1


def run_virtually(main: Coroutine[Any, Any, T]) -> tuple[T, float, float]:
    """The result of `main`, the seconds that it took on the virtual clock, and the real ones."""
    loop = VirtualLoop()
    began, real = loop.time(), time.monotonic()
    try:
        result = loop.run_until_complete(main)
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        virtual, spent = loop.time() - began, time.monotonic() - real
        loop.close()
    return result, virtual, spent
