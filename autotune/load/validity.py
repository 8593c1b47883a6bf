"""Whether a measurement can be believed. A run that breaks a rule is invalid: it says nothing about the engine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.load.enginewatch import EngineWatch
from autotune.load.metrics import Window, latency_samples, metric_key, needed_requests
from autotune.load.records import Records
from autotune.spec.study import LoadSpec, ObjectiveSpec, SloSpec

LAG_FLOOR_S = 0.02
"""Real seconds of lateness that are always allowed at p99."""
LAG_SHARE = 0.10
"""Lateness allowed at p99 as a share of the median TTFT."""
TOKEN_TOLERANCE = 0.01
"""Client and server must agree on the number of tokens this well."""
HIT_TOLERANCE = 0.05
"""Prefix hits beyond those that the load can give by design."""
DEVIATING_SHARE = 0.005
"""Share of answers that may differ from the planned length."""


def check_window(
    records: Records,
    window: Window,
    spec: LoadSpec,
    *,
    scale: float = 1.0,
    planned_inputs: Sequence[int] = (),
    finite: bool = False,
    stopped: bool = False,
    slos: Sequence[SloSpec] = (),
    objectives: Sequence[ObjectiveSpec] = (),
) -> list[str]:
    """Reasons, from the client's own records, why the window cannot be believed; empty for a valid one.

    Args:
        finite: the plan came to its end, so the client may have run out of requests.
        stopped: the level was ended early for a reason, so the window may be short.
    """
    reasons = _late(records, window, scale)
    reasons += _lengths(records, window, planned_inputs)
    if not stopped:
        reasons += _enough(records, window, spec, slos, objectives)
    starved, overdue = records.counts.get("starved", 0), records.counts.get("overdue", 0)
    if not finite and starved > 0.01 * len(records.rows) + 1:
        reasons.append(f"the client ran out of prepared requests {starved} times")
    if overdue > 0.01 * len(records.rows) + 1:
        reasons.append(f"{overdue} planned requests were never sent although their time had come")
    return reasons


def _late(records: Records, window: Window, scale: float) -> list[str]:
    """The client was late: its loop stalled, or requests left after their time."""
    ttft = latency_samples(records, window)["ttft"].values / 1e3
    allowed = max(LAG_FLOOR_S * scale, LAG_SHARE * float(np.median(ttft))) if len(ttft) else LAG_FLOOR_S * scale
    reasons = []
    lag = float(np.percentile(records.lags, 99)) * scale if len(records.lags) else 0.0
    if lag > allowed:
        reasons.append(f"the client was late: loop lag p99 {lag * 1e3:.0f} ms, allowed {allowed * 1e3:.0f} ms")
    late = records.column("sent") - records.column("due")
    late = late[window.holds(records.column("due")) & ~np.isnan(late) & (records.column("attempts") <= 1)]
    if len(late):
        lag = float(np.percentile(late, 99))
        if lag > allowed:
            reasons.append(f"the client was late: send lag p99 {lag * 1e3:.0f} ms, allowed {allowed * 1e3:.0f} ms")
    return reasons


def _lengths(records: Records, window: Window, planned_inputs: Sequence[int]) -> list[str]:
    """Token counts that differ from the plan."""
    ended = records.ok & window.holds(records.column("last"))
    reasons = []
    usage, planned = records.column("completion_tokens")[ended], records.column("planned_output")[ended]
    if len(usage) and np.isnan(usage).all():
        return ["the server sends no usage, so token counts are not known"]
    wrong = usage != planned
    if wrong.sum() > DEVIATING_SHARE * len(usage) + 0.5:
        example = int(np.flatnonzero(wrong)[0])
        got = "no count" if np.isnan(usage[example]) else f"{usage[example]:g}"
        reasons.append(
            f"{int(wrong.sum())} of {len(usage)} answers have another length than planned "
            f"(first: {got} tokens instead of {planned[example]:g}; does the server obey ignore_eos?)"
        )
    if len(planned_inputs):
        wanted = np.array(planned_inputs, dtype=np.float64)[records.column("index")[ended].astype(int)]
        got_inputs = records.column("prompt_tokens")[ended]
        wrong = (got_inputs != wanted) & (wanted > 0) & ~np.isnan(got_inputs)
        if wrong.sum() > DEVIATING_SHARE * len(wanted) + 0.5:
            example = int(np.flatnonzero(wrong)[0])
            reasons.append(
                f"{int(wrong.sum())} of {len(wanted)} prompts have another length than planned "
                f"(first: {got_inputs[example]:g} tokens instead of {wanted[example]:g})"
            )
    return reasons


def required_requests(slos: Sequence[SloSpec], objectives: Sequence[ObjectiveSpec]) -> int:
    """Requests that a window must hold for every percentile that is asked for."""
    percentiles = [float(item.percentile) for item in slos]
    percentiles += [float(item.percentile or 95) for item in objectives if metric_key(item).endswith("_ms")]
    return max((needed_requests(item, objective=True) for item in percentiles), default=0)


def _enough(
    records: Records, window: Window, spec: LoadSpec, slos: Sequence[SloSpec], objectives: Sequence[ObjectiveSpec]
) -> list[str]:
    """The window is too short, or holds too few requests for a percentile that is asked for."""
    reasons = []
    asked = {(item.metric, float(item.percentile), f"SLO on {item.metric}") for item in slos}
    for item in objectives:
        if metric_key(item).endswith("_ms"):
            asked.add((item.metric, float(item.percentile or 95), f"objective {item.metric}"))  # type: ignore[arg-type]
    samples = latency_samples(records, window)
    for metric, percentile, what in sorted(asked):
        needed, found = needed_requests(percentile, objective=True), len(samples[metric].values)
        if found < needed:
            reasons.append(
                f"too few requests: p{percentile:g} ({what}) needs {needed}, the window has {found}; "
                "lengthen load.window or ask for a lower percentile"
            )
    finished = records.ok & window.holds(records.column("last"))
    if not finished.any():
        if not records.failed.any():
            reasons.append("no request ended in the window")
        return reasons
    lengths = (records.column("last") - records.reference)[finished]
    if window.seconds < float(np.median(lengths)):
        reasons.append(
            f"the window ({window.seconds:.1f} s) is shorter than a typical request ({float(np.median(lengths)):.1f} s)"
        )
    if spec.window.requests is not None and not window.by_plan and int(finished.sum()) < spec.window.requests:
        reasons.append(
            f"{int(finished.sum())} of {spec.window.requests} requests ended within window.max_duration "
            f"({spec.window.max_duration:g} s)"
        )
    return reasons


def check_engine(
    records: Records, watch: EngineWatch, spec: LoadSpec, *, start: float, scale: float, expected_hits: float
) -> list[str]:
    """Reasons from comparing the client's records with the server's counters.

    Args:
        start: CLOCK_MONOTONIC second at which the load began.
        scale: time scale of the target.
        expected_hits: highest prefix hit rate that the load can give by design.
    """
    reasons = []
    served = watch.growth("generation_tokens_total")
    if served:
        first, last = watch.readings[0], watch.readings[-1]
        begin, end = (first.at - start) * scale, (last.at - start) * scale
        inside = (records.chunks >= begin) & (records.chunks < end)
        got = float(records.chunk_weights()[inside].sum())
        rate = got / max(end - begin, 1e-9)
        blur = rate * scale * (first.answered - first.asked + last.answered - last.asked)
        running = float(np.mean([r.values.get("num_requests_running", 0.0) for r in watch.readings]))
        blur += records.unplaced(begin) + records.unplaced(end)
        if abs(got - served) > TOKEN_TOLERANCE * served + blur + 2 * running + 2:
            reasons.append(
                f"client and server count different tokens: {got:.0f} received, {served:.0f} generated "
                "(does someone else use the server?)"
            )
    hits = watch.figures().get("prefix_hit_rate")
    if hits is not None and spec.turns == 1 and spec.trace is None and hits > expected_hits + HIT_TOLERANCE:
        reasons.append(
            f"prefix cache hit rate {hits:.0%}, the load can give {expected_hits:.0%} at most: "
            "the prompts are not fresh for this server"
        )
    return reasons
