"""One set-up at a time in a cache folder, also when an earlier one was killed and its installer lives on."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from autotune.engine.cpu_setup.faults import CpuSetupFault

WAIT_LIMIT_S: Final = 45 * 60.0
POLL_S: Final = 0.5


@contextmanager
def setup_lock(path: Path, *, on_wait: Callable[[], None], limit_s: float = WAIT_LIMIT_S) -> Iterator[int]:
    """Hold the lock file and yield its descriptor.

    The descriptor is to be passed on to every child: the kernel keeps the lock until the last process that has it
    is gone, so a set-up that was killed keeps the next one out until its installer has stopped writing.

    Args:
        path: the lock file; created if missing, never removed.
        on_wait: called once if another set-up holds the lock.
        limit_s: seconds to wait for the lock.

    Raises:
        CpuSetupFault: the lock was not free within ``limit_s`` seconds.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        deadline = time.monotonic() + limit_s
        told = False
        while not _try_lock(descriptor):
            if not told:
                on_wait()
                told = True
            if time.monotonic() >= deadline:
                raise CpuSetupFault(
                    f"another set-up has held {path} for {limit_s:.0f} s",
                    hint="see which process has it open (fuser FILE), stop that one and run the command again",
                )
            time.sleep(POLL_S)
        yield descriptor
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
