"""The metrics: their definitions, once. The documentation quotes them from here.

Times of one request, all on CLOCK_MONOTONIC of the client's host:

    t_due     planned send time (open loop only)
    t_send    the request's bytes are handed to the socket
    t_first   arrival of the first chunk that carries a token: text, reasoning or tool call; an empty chunk or one with
              only a role does not count
    t_last    arrival of the last chunk with choices; the usage chunk and [DONE] do not count
    t_ref     t_due in open loop, t_send in closed loop
    n         answer length in tokens by the server's usage

A window [a, b) is measured, of length W = b - a. In closed loop each sample belongs to the time when it ended (the TTFT
to t_first, E2E and TPOT to t_last, a gap to its later chunk), so that no request is left out for being slow; a and b
are ends of requests with a multiple of the concurrency in between (`whole_waves`). In open loop the requests
planned inside the window are measured and waited for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.errors import SpecError
from autotune.load.bootstrap import Blocks
from autotune.load.records import Flags, Floats, Records
from autotune.load.report import Estimate
from autotune.load.waves import wave_ends
from autotune.load.wire import UNFINISHED
from autotune.spec.study import ObjectiveSpec, SloSpec

PERCENTILES = (50.0, 75.0, 90.0, 95.0, 99.0)
MAX_BLOCKS = 20
"""Blocks of time that a window is cut into for its intervals, at most."""


@dataclass(frozen=True, slots=True)
class Definition:
    """What a metric means.

    Attributes:
        unit: its unit.
        formula: how it is computed, in the symbols of this module's head.
        higher: more is better.
    """

    unit: str
    formula: str
    higher: bool


_RATES = {
    "output_throughput": Definition(
        "tok/s", "tokens arrived in [a, b) / W; a chunk stands for n / chunks tokens", True
    ),
    "total_throughput": Definition(
        "tok/s", "(tokens arrived in [a, b) + prompt tokens of requests with t_first in [a, b)) / W", True
    ),
    "request_throughput": Definition("req/s", "requests ended in [a, b) without error / W", True),
    "goodput": Definition(
        "req/s", "requests that hold every SLO limit / W; a failed request holds none; needs SLOs", True
    ),
    "goodput_share": Definition("", "requests that hold every SLO limit / (ended + failed requests); needs SLOs", True),
    "error_share": Definition("", "failed requests / (ended + failed requests)", False),
    "tokens_per_chunk": Definition("tok", "sum of n / number of chunks", False),
    "cached_share": Definition("", "prompt tokens that the server says were cached / prompt tokens", True),
    "tokens_per_joule": Definition("tok/J", "output_throughput / mean power of the GPUs in the window", True),
}
_LATENCIES = {
    "ttft": "t_first - t_ref",
    "tpot": "(t_last - t_first) / (n - 1); requests with n = 1 have none",
    "itl": "time between two chunks of one request that follow each other, over the requests in `load.itl_share`",
    "e2e": "t_last - t_ref",
}
_WHAT = {"ttft": "time to first token", "tpot": "time per output token", "itl": "inter-token latency", "e2e": "latency"}


def latency_key(metric: str, percentile: float) -> str:
    """The key of a latency's percentile, such as ``ttft_p95_ms``."""
    return f"{metric}_p{percentile:g}_ms"


def _all_keys() -> dict[str, Definition]:
    keys = dict(_RATES)
    for name, formula in _LATENCIES.items():
        keys[f"{name}_mean_ms"] = Definition("ms", f"mean of {formula}", False)
        for percentile in PERCENTILES:
            keys[latency_key(name, percentile)] = Definition("ms", f"percentile {percentile:g} of {formula}", False)
    keys["stall_max_ms"] = Definition(
        "ms", "longest time between two chunks of one request, over the requests in `load.itl_share`", False
    )
    return keys


KEYS = _all_keys()
"""Every metric by its key."""


def higher_is_better(metric: str) -> bool:
    """Whether more is better, for a metric key or an objective's metric name."""
    if metric == "capacity":
        return True
    if metric in _LATENCIES:
        return False
    if metric in KEYS:
        return KEYS[metric].higher
    if metric.endswith("_ms"):
        return False
    raise SpecError(f"{metric!r} is no metric", hint="legal: " + ", ".join(KEYS))


def metric_key(objective: ObjectiveSpec) -> str:
    """The metric key that an objective refers to.

    Raises:
        SpecError: the percentile is not one that is measured.
    """
    if objective.metric in _LATENCIES:
        percentile = 95.0 if objective.percentile is None else objective.percentile
        if percentile not in PERCENTILES:
            legal = ", ".join(f"{item:g}" for item in PERCENTILES)
            raise SpecError(f"percentile {percentile:g} is not measured", key="objectives", hint=f"legal: {legal}")
        return latency_key(objective.metric, percentile)
    return objective.metric


def needed_requests(percentile: float, *, objective: bool = False) -> int:
    """Samples that a percentile needs: three beyond it to be reported; ten beyond p99 and above to be optimised.

    p50 needs 6, p90 30, p95 60, p99 300; as an objective or SLO p99 needs 1,000.
    """
    beyond = 10.0 if objective and percentile >= 99 else 3.0
    return math.ceil(beyond / (1.0 - percentile / 100.0) - 1e-9)


@dataclass(frozen=True, slots=True)
class Window:
    """The measured window in seconds since the start of the load.

    Attributes:
        start, end: its ends.
        by_plan: in open loop.
        waves: in closed loop the ends of whole waves, the window's own ends included; empty where it has none.
    """

    start: float
    end: float
    by_plan: bool = False
    waves: tuple[float, ...] = ()

    @property
    def seconds(self) -> float:
        return self.end - self.start

    def holds(self, times: Floats) -> Flags:
        """Which times lie in the window."""
        return (times >= self.start) & (times < self.end)


@dataclass(frozen=True)
class Samples:
    """Values of one latency in milliseconds and the time that each belongs to."""

    values: Floats
    times: Floats


def latency_samples(records: Records, window: Window) -> dict[str, Samples]:
    """Samples of all latencies in the window."""
    first, last, reference = records.column("first"), records.column("last"), records.reference
    ok = records.ok
    tokens = records.output_tokens
    planned = window.holds(reference)
    first_in = planned if window.by_plan else window.holds(first)
    last_in = planned if window.by_plan else window.holds(last)
    # A request whose first token came counts for TTFT even when its end lies beyond the window, a failed one never.
    # In open loop one that is still waiting counts with its wait so far, or a stuck server would look fast.
    first = np.where(np.isnan(first) & planned & window.by_plan & (records.column("status") == UNFINISHED),
                     records.column("end"), first)  # fmt: skip
    has_first = ~np.isnan(first) & ~records.failed & first_in
    done = ok & last_in & ~np.isnan(first)
    paced = done & (tokens > 1)
    anchor = reference if window.by_plan else last
    gaps, gap_times = np.diff(records.chunks), records.chunks[1:]
    kept = records.gaps & window.holds(gap_times)
    with np.errstate(invalid="ignore"):
        pace = (last - first) / (tokens - 1)
    return {
        "ttft": Samples((first - reference)[has_first] * 1e3, (reference if window.by_plan else first)[has_first]),
        "tpot": Samples(pace[paced] * 1e3, anchor[paced]),
        "itl": Samples(gaps[kept] * 1e3, gap_times[kept]),
        "e2e": Samples((last - reference)[done] * 1e3, anchor[done]),
    }


def good_requests(records: Records, slos: Sequence[SloSpec]) -> Flags:
    """Which requests ended well and within every SLO limit (TTFT, TPOT and E2E of the request; its mean gap as ITL)."""
    first, last, reference = records.column("first"), records.column("last"), records.reference
    tokens = records.output_tokens
    with np.errstate(invalid="ignore", divide="ignore"):
        pace = np.where(tokens > 1, (last - first) / (tokens - 1), 0.0)
        gap = np.where(records.column("events") > 1, (last - first) / (records.column("events") - 1), 0.0)
        figures = {"ttft": first - reference, "tpot": pace, "itl": gap, "e2e": last - reference}
        good = records.ok
        for slo in slos:
            good = good & (figures[slo.metric] <= slo.limit)
    return good


def whole_waves(records: Records, window: Window, streams: int, first: int | None = None) -> Window:
    """The whole waves of a closed loop's window (see `waves.wave_ends`).

    The window is returned as it is where it holds less than two of them or a request failed in it.

    Args:
        first: requests that ended before the one to begin with, where the load was kept up from that one on.
    """
    waves = wave_ends(np.sort(records.column("last")[records.ok]), window.start, window.end, streams, first=first)
    if not waves:
        return window
    whole = Window(waves[0], waves[-1], window.by_plan, waves)
    ends = records.column("end")[records.failed]
    return window if (whole.holds(ends) | window.holds(ends)).any() else whole


def blocks_of(records: Records, window: Window) -> Blocks:
    """Blocks for the bootstrap, 20 at most: whole waves, else equal ones no shorter than a typical request.

    Where several requests at a time are planned, a block is as long as some such bursts: with none in one block and two
    in the next, a rate that never changes would seem to be hardly known.
    """
    if window.waves:
        count = min(len(window.waves) - 1, MAX_BLOCKS)
        return Blocks([window.waves[k] for k in np.linspace(0, len(window.waves) - 1, count + 1).round().astype(int)])
    lengths = (records.column("last") - records.column("sent"))[records.ok]
    typical = float(np.median(lengths)) if len(lengths) else window.seconds / MAX_BLOCKS
    count = int(np.clip(window.seconds / max(typical, 1e-9), 5, MAX_BLOCKS))
    planned = records.reference[window.holds(records.reference)] if window.by_plan else np.empty(0)
    bursts = len(np.unique(planned))
    if 2 <= bursts <= len(planned) / 2:
        whole = np.linspace(0, bursts, min(count, bursts) + 1).round()
        return Blocks((window.start + whole * window.seconds / bursts).tolist())
    return Blocks.equal(window.start, window.end, count)


def summarise(
    records: Records, window: Window, slos: Sequence[SloSpec] = (), *, percentiles: Iterable[float] = PERCENTILES
) -> dict[str, Estimate]:
    """Every metric of a window with its 95 % bootstrap interval over blocks of time.

    A percentile with too few samples (see `needed_requests`) is left out.
    """
    blocks = blocks_of(records, window)
    result = _throughputs(records, window, blocks)
    result.update(_request_counts(records, window, blocks, slos))
    for name, samples in latency_samples(records, window).items():
        if not len(samples.values):
            continue
        result[f"{name}_mean_ms"] = blocks.mean(samples.values, samples.times)
        wanted = [item for item in percentiles if len(samples.values) >= needed_requests(item)]
        found = blocks.percentiles(samples.values, samples.times, wanted)
        result.update({latency_key(name, item): value for item, value in zip(wanted, found, strict=True)})
        if name == "itl":
            peak = float(samples.values.max())
            result["stall_max_ms"] = Estimate(peak, peak, peak, len(samples.values))
    return result


def _throughputs(records: Records, window: Window, blocks: Blocks) -> dict[str, Estimate]:
    inside = window.holds(records.chunks)
    times = records.chunks[inside]
    weights = records.chunk_weights()[inside]
    first = records.column("first")
    begun = window.holds(first) & ~np.isnan(records.column("prompt_tokens"))
    prompts = records.column("prompt_tokens")[begun]
    # Requests that were still running at the end have no usage yet; their prompts are worth the mean one.
    unknown = first[window.holds(first) & np.isnan(records.column("prompt_tokens"))]
    mean_prompt = float(prompts.mean()) if len(prompts) else 0.0
    all_times = np.concatenate([times, first[begun], unknown])
    all_weights = np.concatenate([weights, prompts, np.full(len(unknown), mean_prompt)])
    result = {
        "output_throughput": blocks.rate(times, weights),
        "total_throughput": blocks.rate(all_times, all_weights),
    }
    ended = window.holds(records.column("last")) & records.ok
    events, cached = records.column("events")[ended], records.column("cached_tokens")[ended]
    if events.sum() > 0:
        ends = records.column("last")[ended]
        result["tokens_per_chunk"] = blocks.ratio(records.output_tokens[ended], events, ends)
    known = ~np.isnan(cached)
    if known.any():
        ends = records.column("last")[ended][known]
        result["cached_share"] = blocks.ratio(cached[known], records.column("prompt_tokens")[ended][known], ends)
    return result


def _request_counts(records: Records, window: Window, blocks: Blocks, slos: Sequence[SloSpec]) -> dict[str, Estimate]:
    ends = np.where(records.ok, records.column("last"), records.column("end"))
    finished = records.ok | records.failed
    anchor = records.reference if window.by_plan else ends
    inside = finished & window.holds(anchor)
    ended = records.ok & window.holds(ends)
    result = {"request_throughput": blocks.rate(ends[ended], np.ones(int(ended.sum())))}
    if inside.any():
        failed = records.failed[inside].astype(np.float64)
        result["error_share"] = blocks.share(failed, anchor[inside])
    if slos and inside.any():
        good = good_requests(records, slos)[inside].astype(np.float64)
        result["goodput"] = blocks.rate(anchor[inside], good)
        result["goodput_share"] = blocks.share(good, anchor[inside])
    return result
