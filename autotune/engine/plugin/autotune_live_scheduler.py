"""A vLLM scheduler whose limits can be lowered between two loads. Runs inside vLLM's engine process, not in ours.

Given to vLLM by ``--scheduler-cls autotune_live_scheduler.LiveScheduler``, for vLLM 0.26 to 0.33. It is vLLM's own
scheduler (the asynchronous one where vLLM would take that); before the first step after an idle moment it looks
whether the limits in the file named by ``AUTOTUNE_LIVE_LIMITS`` have changed. Without that variable it does nothing.

The file is 64 bytes of little-endian signed 64-bit integers:

    0  revision, raised last by the writer       4  revision that was applied, written by this side
    1  max_num_seqs, 0: as started               5  max_num_seqs in force
    2  max_num_batched_tokens, 0: as started     6  max_num_batched_tokens in force
    3  long_prefill_token_threshold, -1: as started   7  long_prefill_token_threshold in force
"""

import mmap
import os
import struct

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

VARIABLE = "AUTOTUNE_LIVE_LIMITS"
SIZE = 64
_REVISION = struct.Struct("<q")
_WANTED = struct.Struct("<4q")
_IN_FORCE = struct.Struct("<4q")


class _Live:
    """Mixed in before a scheduler class of vLLM."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._live_revision = 0
        self._live_file = _open()
        self._live_started = (
            self.max_num_running_reqs,
            self.max_num_scheduled_tokens,
            self.scheduler_config.long_prefill_token_threshold,
        )

    def schedule(self, *args, **kwargs):
        # Limits change only while nothing runs: a running request may hold what a lower limit would forbid.
        idle = self._live_file is not None and not self.running
        if idle and _REVISION.unpack_from(self._live_file, 0)[0] != self._live_revision:
            self._live_apply()
        return super().schedule(*args, **kwargs)

    def _live_apply(self):
        revision, seqs, tokens, threshold = _WANTED.unpack_from(self._live_file, 0)
        started_seqs, started_tokens, started_threshold = self._live_started
        seqs = min(seqs, started_seqs) if seqs > 0 else started_seqs
        tokens = min(tokens, started_tokens) if tokens > 0 else started_tokens
        threshold = threshold if threshold >= 0 else started_threshold
        if hasattr(self, "max_num_active_reqs"):
            # Here max_num_running_reqs is the model runner's slot count and must stay as it is.
            self.max_num_active_reqs = seqs
        else:
            self.max_num_running_reqs = seqs
        self.max_num_scheduled_tokens = tokens
        self.scheduler_config.long_prefill_token_threshold = threshold
        self._live_revision = revision
        _IN_FORCE.pack_into(self._live_file, 32, revision, seqs, tokens, threshold)


class _LiveAsyncScheduler(_Live, AsyncScheduler):
    pass


class _LivePlainScheduler(_Live, Scheduler):
    pass


class LiveScheduler:
    """What vLLM instantiates: gives the class that vLLM itself would have taken, with live limits."""

    def __new__(cls, vllm_config, *args, **kwargs):
        chosen = _LiveAsyncScheduler if vllm_config.scheduler_config.async_scheduling else _LivePlainScheduler
        return chosen(vllm_config, *args, **kwargs)


def _open():
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), SIZE)
