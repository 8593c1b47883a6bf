"""Whether the engine ran the load that the profile states, by its own counters beside the client's records.

What the engine does with the load (it is slow, it queues, it preempts) is its result and stays valid; it is told as a
note. A window is invalid where the engine ran *another* load than the one that the figures are given for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from autotune.load.enginewatch import EngineWatch, Reading
from autotune.load.metrics import Window
from autotune.load.records import Floats, Records
from autotune.load.report import Level
from autotune.spec.expect import ExpectSpec
from autotune.spec.study import LoadSpec

FOREIGN_SHARE = 0.15
"""Requests that the server may run beyond the client's own, as a share of them: readings are taken in passing."""
FOREIGN_FLOOR = 4.0
"""Requests beyond the client's own that are always allowed."""
HELD_SHARE = 0.9
"""Share of its concurrency that a closed loop must have kept in flight."""
SEEN_SHARE = 0.7
"""Below this share of the client's requests in the engine, the rest waits in front of it, which is worth a note."""
SEEN_FLOOR = 8.0
LATE_SHARE = 0.9
"""Preemptions that all (this share) fall into the second half of the window mean that the KV cache filled up in it."""
LATE_PREEMPTIONS = 0.05
"""So many preemptions a request at least."""
DRIFT = 0.10
"""And so much throughput lost from the first half to the second."""
GROWTH_SHARE = 0.05
"""Backlog, as a share of the arrivals in the window, from which an open loop is overloaded."""
BUSY = "gpu_utilisation_mean"
BUSY_PERCENT = 95.0
"""A closed loop has work for the GPUs at any time. One configuration (FP8 weights, 128 streams) kept an H200 busy for
97 to 100 % of the windows on one host and for 88 to 92 % on another, and there wrote 8 % less (docs/evidence)."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What the comparison gave: reasons why the window cannot be believed, and notes on a valid one."""

    invalid: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def in_flight(records: Records, times: Floats) -> Floats:
    """Requests that the client had in flight at each of the times."""
    sent = np.sort(records.column("sent")[~np.isnan(records.column("sent"))])
    ended = np.sort(records.column("end")[~np.isnan(records.column("end"))])
    counts = np.searchsorted(sent, times, side="right") - np.searchsorted(ended, times, side="right")
    return counts.astype(np.float64)


def check_profile(
    records: Records, window: Window, watch: EngineWatch, spec: LoadSpec, level: Level, *, start: float, scale: float,
    finite: bool = False,
) -> Findings:  # fmt: skip
    """Compare the load that ran with the one that was planned.

    Args:
        start: CLOCK_MONOTONIC second at which the load began.
        scale: time scale of the target.
        finite: the plan came to its end, so that the load fell off by itself.
    """
    readings = [(item, (item.at - start) * scale) for item in watch.readings]
    inside = [item for item in readings if window.start <= item[1] < window.end]
    held = None if finite else _held(records, window, level)
    invalid = [
        *_restarted(watch.readings),
        *_expected(records, watch, spec.expect, start=start, scale=scale),
        *(found for found in (_foreign(records, inside), held, _filled_up(records, window, inside)) if found),
    ]
    overload = _overloaded(records, window, spec, level)
    notes = [note for note in (_unseen(records, inside), overload, _preempted(records, window, inside)) if note]
    return Findings(tuple(invalid), tuple(notes))


def _busy(reading: Reading) -> float | None:
    running, waiting = reading.values.get("num_requests_running"), reading.values.get("num_requests_waiting")
    return None if running is None else running + (waiting or 0.0)


def _both(records: Records, readings: Sequence[tuple[Reading, float]]) -> tuple[float, float] | None:
    """Mean requests in the engine, and in the client's hands at the same moments; None without gauges."""
    seen = [(busy, at) for item, at in readings if (busy := _busy(item)) is not None]
    if not seen:
        return None
    own = in_flight(records, np.array([at for _, at in seen]))
    return float(np.mean([busy for busy, _ in seen])), float(own.mean())


def _restarted(readings: Sequence[Reading]) -> list[str]:
    """A counter that falls belongs to another process than before."""
    for before, after in pairwise(readings):
        for name in ("generation_tokens_total", "prompt_tokens_total", "num_preemptions_total"):
            if after.values.get(name, math.inf) < before.values.get(name, 0.0):
                return [f"the server's counter {name} fell in the window: it was restarted, or several servers answer"]
    return []


def _foreign(records: Records, readings: Sequence[tuple[Reading, float]]) -> str | None:
    """More requests in the engine than this client sent cannot come from a slow engine."""
    means = _both(records, readings)
    if means is None or means[0] - means[1] <= max(FOREIGN_FLOOR, FOREIGN_SHARE * means[1]):
        return None
    return f"the server runs {means[0]:.0f} requests, this client sent {means[1]:.0f}: someone else uses the server"


def _held(records: Records, window: Window, level: Level) -> str | None:
    """A closed loop that did not keep its concurrency is another load. Failed requests rest, which errors tell."""
    failed = records.failed & window.holds(records.column("end"))
    if level.kind != "closed" or window.seconds <= 0 or failed.any():
        return None
    times = np.linspace(window.start, window.end, 200, endpoint=False)
    held = float(in_flight(records, times).mean())
    if held >= HELD_SHARE * level.value:
        return None
    return f"the client was late: it kept {held:.1f} of {level.value:g} requests in flight, which is another load"


def _filled_up(records: Records, window: Window, readings: Sequence[tuple[Reading, float]]) -> str | None:
    """Preemptions that begin within the window and cost throughput: it holds two regimes, and the second one lasts."""
    name = "num_preemptions_total"
    counts = [(at, item.values[name]) for item, at in readings if name in item.values]
    middle = (window.start + window.end) / 2
    early = [value for at, value in counts if at < middle]
    if len(counts) < 6 or len(early) < 2:
        return None
    total, late = counts[-1][1] - counts[0][1], counts[-1][1] - early[-1]
    ended = int((records.ok & window.holds(records.column("last"))).sum())
    if total < max(2.0, LATE_PREEMPTIONS * ended) or late < LATE_SHARE * total:
        return None
    first = float(((records.chunks >= window.start) & (records.chunks < middle)).sum())
    second = float(((records.chunks >= middle) & (records.chunks < window.end)).sum())
    if second > (1 - DRIFT) * first:
        return None
    return (
        f"the KV cache filled up during the window: {late:.0f} of {total:.0f} preemptions in its second half, with "
        f"{1 - second / first:.0%} less throughput than in the first; lengthen load.warmup"
    )


def _expected(
    records: Records, watch: EngineWatch, expect: ExpectSpec | None, *, start: float, scale: float
) -> list[str]:
    """What the profile itself states about preemptions and queue."""
    if expect is None:
        return []
    reasons = []
    if expect.preemptions is not None:
        growth = watch.growth("num_preemptions_total")
        if growth is None:
            reasons.append("load.expect.preemptions cannot be checked: the server does not count them")
        else:
            span = [(item.at - start) * scale for item in (watch.readings[0], watch.readings[-1])]
            last = records.column("last")
            ended = int((records.ok & (last >= span[0]) & (last < span[1])).sum())
            share = growth / max(ended, 1)
            if share > expect.preemptions:
                reasons.append(f"{share:.3g} preemptions a request, load.expect allows {expect.preemptions:g}")
    if expect.queue is not None:
        pairs = [(item.values.get("num_requests_waiting"), _busy(item)) for item in watch.readings]
        known = [(waiting, busy) for waiting, busy in pairs if waiting is not None and busy is not None]
        if not known:
            reasons.append("load.expect.queue cannot be checked: the server does not tell who waits")
        else:
            share = sum(waiting for waiting, _ in known) / max(sum(busy for _, busy in known), 1e-9)
            if share > expect.queue:
                reasons.append(f"{share:.0%} of the requests wait in the engine, load.expect allows {expect.queue:.0%}")
    return reasons


# -- slow, but valid ------------------------------------------------------------------------------------------------


def host_bound(level: Level, engine: Mapping[str, float]) -> str | None:
    """Whether the GPUs of a closed loop waited for their host, as a sentence.

    Args:
        engine: the level's figures of engine and GPUs (`LevelReport.engine`).
    """
    busy = engine.get(BUSY, 0.0)  # 0 is a driver that does not tell
    if level.kind != "closed" or not 0 < busy < BUSY_PERCENT:
        return None
    return f"the GPUs were busy for {busy:.0f}% of the window: they waited for their host"


def _unseen(records: Records, readings: Sequence[tuple[Reading, float]]) -> str | None:
    means = _both(records, readings)
    if means is None or means[1] < SEEN_FLOOR or means[0] >= SEEN_SHARE * means[1]:
        return None
    return (
        f"the engine holds {means[0]:.0f} of {means[1]:.0f} requests in flight: the others wait in front of it "
        "(API server, tokenizer, proxy, connection limit)"
    )


def _overloaded(records: Records, window: Window, spec: LoadSpec, level: Level) -> str | None:
    """More arrivals than ends: beyond chance, a rate that the engine does not sustain."""
    if level.kind != "open" or spec.arrivals == "trace" or window.seconds <= 0:
        return None
    due = records.column("due")
    arrived = int(window.holds(due).sum())
    began = int((due < window.start).sum() - (records.column("end") < window.start).sum())
    over = int((due < window.end).sum() - (records.column("end") < window.end).sum())
    growth = over - began
    if growth <= max(GROWTH_SHARE * arrived, 3 * math.sqrt(max(arrived, 1))):
        return None
    return (
        f"overloaded: {growth} more requests in flight at the end of the window than at its begin, of {arrived} "
        "arrivals; latencies grow with the window and are lower bounds"
    )


def _preempted(records: Records, window: Window, readings: Sequence[tuple[Reading, float]]) -> str | None:
    counts = [item.values["num_preemptions_total"] for item, _ in readings if "num_preemptions_total" in item.values]
    ended = int((records.ok & window.holds(records.column("last"))).sum())
    if len(counts) < 2 or not ended or counts[-1] - counts[0] < max(2.0, 0.01 * ended):
        return None
    grown = counts[-1] - counts[0]
    return f"{grown:.0f} preemptions in {ended} requests: the KV cache is too small for this load"
