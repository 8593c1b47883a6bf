"""Progress of a level, and the rule that ends a hopeless one early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.load.report import Level
from autotune.spec.study import SloSpec

MIN_REQUESTS = 30
MIN_SHARE = 0.2
"""Share of the window that must have passed."""
FACTOR = 1.5
"""Only requests this many times over the limit count against it."""
HEADROOM = 1.25
"""The rest of the window may bring this many times the requests that the pace so far lets expect."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How a level stands; times in the target's seconds.

    Attributes:
        index: number of the level, from 0.
        levels: how many levels there are.
        level: the level.
        phase: `warmup`, `window` or `drain`.
        elapsed_s: seconds in this phase.
        expected_s: expected length of the window.
        finished: requests ended in this phase.
        failed: requests failed in this phase.
        inflight: requests running now.
        output_throughput: chunks a second in this phase.
        ttft_s: times to first token seen in the window so far; requests still waiting count with their wait.
    """

    index: int
    levels: int
    level: Level
    phase: str
    elapsed_s: float
    expected_s: float
    finished: int
    failed: int
    inflight: int
    output_throughput: float
    ttft_s: tuple[float, ...] = ()

    def __str__(self) -> str:
        place = f"{self.level} ({self.index + 1} of {self.levels}) " if self.levels > 1 else f"{self.level} "
        clock = f"{self.elapsed_s:.0f}/{self.expected_s:.0f} s" if self.phase == "window" else f"{self.elapsed_s:.0f} s"
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{place}{self.phase} {clock}, {self.finished} requests{failed}, {self.output_throughput:.0f} tok/s"


HopelessRule = Callable[[Progress], str | None]


def breaks_slo(progress: Progress, slos: Sequence[SloSpec]) -> str | None:
    """Why the level cannot hold a TTFT SLO any more, or None.

    The rule: a fifth of the window has passed, 30 requests have been seen, and so many of them took over 1.5 times
    the limit that the percentile would break it even if every request to come (1.25 times as many as the pace lets
    expect) kept it. What was measured so far is reported; its latency is a lower bound.
    """
    seen = len(progress.ttft_s)
    share = progress.elapsed_s / max(progress.expected_s, 1e-9)
    if progress.phase != "window" or seen < MIN_REQUESTS or share < MIN_SHARE:
        return None
    total = seen + seen * max(0.0, 1.0 / share - 1.0) * HEADROOM
    for slo in slos:
        if slo.metric != "ttft":
            continue
        over = sum(1 for value in progress.ttft_s if value > FACTOR * slo.limit)
        if over > (1.0 - slo.percentile / 100.0) * total:
            return (
                f"hopeless: {over} of {seen} requests took more than {FACTOR:g} times the TTFT limit of "
                f"{slo.limit * 1e3:.0f} ms, so p{slo.percentile:g} cannot hold it any more"
            )
    return None
