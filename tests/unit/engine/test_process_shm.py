"""Shared memory is known by who has it mapped, semaphores included."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import shared_memory

from autotune.engine.supervisor import shm_names, shm_of


def test_semaphores_and_segments_are_found_by_inode() -> None:
    before = shm_names()
    lock = multiprocessing.get_context("spawn").Lock()
    segment = shared_memory.SharedMemory(create=True, size=4096)
    try:
        fresh = shm_names() - before
        mine = shm_of([os.getpid()], fresh)
        assert segment.name.lstrip("/") in mine
        assert any(name.startswith("sem.mp-") for name in mine)
        assert shm_of([os.getppid()], fresh) == set()
    finally:
        segment.close()
        segment.unlink()
        del lock
