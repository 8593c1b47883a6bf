"""SIGTERM and SIGINT as a cancellation: whoever runs engines stops them, keeps what is finished, and leaves."""

from __future__ import annotations

import asyncio
import signal


def cancel_on_signals() -> None:
    """From now on either signal cancels the current task of the running loop.

    Raises:
        RuntimeError: there is no running task.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    if task is None:
        raise RuntimeError("only a task can be cancelled")
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
