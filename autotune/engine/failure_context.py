"""What the caller knows besides the log, and how it changes a verdict. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from autotune.engine.failure_values import (
    Action,
    Advice,
    Cause,
    DecidingLine,
    Direction,
    Failure,
    FailureClass,
    FailureContext,
)
from autotune.engine.kernellog import GPU_LOST_XIDS
from autotune.engine.redaction import redact

_HELD_GIB = 0.5
_HELD_SHARE = 0.03
"""Without an idle baseline: less than this share of a GPU missing is its own context, not another process."""

_SYMPTOMS = frozenset(
    {
        FailureClass.UNKNOWN,
        FailureClass.NO_FAILURE,
        FailureClass.ENGINE_DEAD_GENERIC,
        FailureClass.WORKER_DIED,
        FailureClass.WORKER_CRASH,
        FailureClass.NCCL_TIMEOUT,
        FailureClass.RPC_TIMEOUT,
        FailureClass.STALL,
        FailureClass.KILLED,
        FailureClass.READY_TIMEOUT,
    }
)


def with_context(failure: Failure, groups: Mapping[str, str], context: FailureContext) -> Failure:
    """Correct a verdict by what was measured before the start and what was asked for."""
    if failure.signature_id == "free_memory_less_than_desired":
        return _memory_refusal(failure, groups, context)
    if failure.signature_id == "cpu_memory_less_than_desired" and context.idle_free_gib is not None:
        return _memory_refusal(failure, groups, context)
    if failure.signature_id == "engine_dead" and context.elapsed_s is not None:
        return _ready_timeout(failure, context.elapsed_s, context.ready_timeout_s)
    asked = context.requested
    if failure.action is Action.QUARANTINE_VALUE and asked and not failure.quarantine:
        # Nothing of it was asked for, so it is the model, the card or the installation, and every trial would fail.
        return replace(failure, cause=Cause.ENVIRONMENT, action=Action.STOP_IF_REPEATS)
    return failure


def _memory_refusal(failure: Failure, groups: Mapping[str, str], context: FailureContext) -> Failure:
    """The same sentence has two causes: somebody holds the memory, or the share is larger than an idle card allows."""
    try:
        free, total = float(groups["free"]), float(groups["total"])
    except (KeyError, ValueError):
        return failure
    baseline = context.idle_free_gib
    held = (total if baseline is None else baseline) - free
    allowed = max(_HELD_GIB, _HELD_SHARE * total) if baseline is None else _HELD_GIB
    if held > allowed:
        text = (
            f"{held:.1f} GiB more than at idle are held by another process: find it (nvidia-smi; an orphan of an "
            "earlier run?), end it, wait for the idle level."
        )
        return replace(
            failure,
            failure_class=FailureClass.DEVICE_MEMORY_BUSY,
            cause=Cause.ENVIRONMENT,
            action=Action.RETRY_ONCE,
            advice=(Advice("", Direction.NONE, text),),
        )
    limit = math.floor(free / total * 100) / 100 if total > 0 else 0.0
    text = f"The device is idle and has {free:g} of {total:g} GiB free: at most {limit:.2f}."
    return replace(
        failure,
        failure_class=FailureClass.MEMORY_REQUEST_TOO_LARGE,
        cause=Cause.CONFIG,
        action=Action.LEARN,
        advice=(Advice("gpu_memory_utilization", Direction.DOWN, text, f"{limit:.2f}"),),
    )


def _ready_timeout(failure: Failure, elapsed_s: float, limit_s: float) -> Failure:
    """Dead without a cause, right at vLLM's own time-out: that is the cause."""
    if not 0.97 * limit_s <= elapsed_s <= 1.1 * limit_s + 30:
        return failure
    text = (
        f"The start ended after {elapsed_s:.0f} s, at vLLM's time-out of {limit_s:.0f} s: raise it; a second start "
        "finds warm caches."
    )
    return replace(
        failure,
        failure_class=FailureClass.READY_TIMEOUT,
        advice=(Advice("env.VLLM_ENGINE_READY_TIMEOUT_S", Direction.UP, text),),
        signature_id="engine_dead_at_ready_timeout",
    )


def host_evidence(failure: Failure, exit_code: int | None, context: FailureContext) -> Failure:
    """Look at GPU, kernel and exit code before a configuration is blamed for what it did not do."""
    if failure.failure_class is FailureClass.NO_FAILURE and context.stopped_by_us:
        return failure
    return (
        _gpu_fault(failure, context) or _host_oom(failure, exit_code, context) or _signal(failure, exit_code, context)
    )


def _gpu_fault(failure: Failure, context: FailureContext) -> Failure | None:
    hardware = [xid for xid in context.kernel.xids if xid.hardware]
    codes = sorted({xid.code for xid in hardware} | (set(context.xids) & GPU_LOST_XIDS))
    if not codes and not context.ecc_uncorrected:
        return None
    lines = tuple(DecidingLine(0, redact(xid.line)) for xid in hardware[-2:])
    if not lines:
        seen = f"Xid {', '.join(map(str, codes))}" if codes else f"{context.ecc_uncorrected} uncorrectable ECC errors"
        lines = (DecidingLine(0, f"{seen} reported by the driver since the start"),)
    text = "The card reported a fault: nothing was learnt about the configuration; drain, reset or replace it."
    return Failure(
        FailureClass.GPU_HARDWARE,
        Cause.ENVIRONMENT,
        Action.STOP,
        (*lines, *failure.lines[:2]),
        (Advice("", Direction.NONE, text),),
        signature_id="host_xid" if codes else "host_ecc",
        stage=failure.stage,
    )


def _host_oom(failure: Failure, exit_code: int | None, context: FailureContext) -> Failure | None:
    kills = context.kernel.oom_kills
    if not kills or failure.failure_class not in _SYMPTOMS | {FailureClass.HOST_OOM}:
        return None
    if failure.failure_class is FailureClass.NO_FAILURE and exit_code in (None, 0):
        return None
    where = "the container's limit" if kills[-1].cgroup else "host memory"
    text = (
        f"The kernel killed {kills[-1].process} for want of memory ({where}): lower CPU offload, swap space and KV "
        "cache on the host, or raise the limit."
    )
    return Failure(
        FailureClass.HOST_OOM,
        Cause.ENVIRONMENT,
        Action.STOP_IF_REPEATS,
        (*(DecidingLine(0, redact(kill.line)) for kill in kills[-2:]), *failure.lines[:2]),
        (Advice("cpu_offload_gb", Direction.DOWN, text),),
        signature_id="host_oom_kill",
        stage=failure.stage,
    )


def _signal(failure: Failure, exit_code: int | None, context: FailureContext) -> Failure:
    if exit_code is None or context.stopped_by_us or failure.failure_class is not FailureClass.UNKNOWN:
        return failure
    if failure.signature_id == "unmatched_exception":
        return failure
    number = -exit_code if exit_code < 0 else exit_code - 128
    if number == 9:
        text = "Killed from outside with signal 9: a container's limit, an operator, a supervisor; see dmesg."
        advice = (Advice("", Direction.NONE, text),)
        return replace(failure, failure_class=FailureClass.KILLED, advice=advice, signature_id="exit_sigkill")
    if number in (4, 6, 7, 8, 11):
        advice = (
            Advice(
                "",
                Direction.NONE,
                f"Crashed in native code with signal {number}: once more, then treat it as infeasible.",
            ),
        )
        return replace(failure, failure_class=FailureClass.WORKER_CRASH, advice=advice, signature_id="exit_crash")
    return failure
