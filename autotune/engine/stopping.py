"""An end that is brought about once, whoever asks for it and whatever becomes of who asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from autotune.engine.protocol import StopReport


class StopOnce:
    """Runs `stop` at the first call, to its end also where that caller is cancelled; every caller gets its report."""

    def __init__(self, stop: Callable[[], Awaitable[StopReport]]) -> None:
        self._stop = stop
        self._report: StopReport | None = None
        self._lock = asyncio.Lock()

    async def __call__(self) -> StopReport:
        async with self._lock:
            if self._report is None:
                ending = asyncio.ensure_future(self._stop())
                try:
                    self._report = await asyncio.shield(ending)
                except asyncio.CancelledError:
                    self._report = await ending
                    raise
            return self._report
