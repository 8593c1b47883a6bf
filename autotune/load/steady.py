"""When the warm-up is over: two windows that follow each other must agree. Requests go on without a gap afterwards."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.load.report import Level
from autotune.spec.study import WarmupSpec

EXTRA_WAVES = 4
"""Waves after the required ones before the measurement begins all the same, with `warmup_steady` 0 in the report."""
OPEN_WAVE = 16
"""Finished requests in a wave of an open loop."""
OPEN_AGREEMENT = 0.25
"""In open loop the mean requests in flight of two waves must agree this well (throughput just follows the rate)."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Counters at one moment; `now` in the target's seconds since the start of the load."""

    now: float
    finished: int
    chunks: int
    inflight: int


class WarmUp:
    """Watches a load until it is steady.

    A wave is as many finished requests as run at once, so that it holds whole requests and not a part of a lockstep
    cycle. In closed loop the token rates of the last two waves must agree within the tolerance, in open loop the
    numbers in flight.

    Args:
        spec: what the study asks for.
        level: the level that runs.
        turns: of a conversation; only after so many waves streams are spread over all of them.
    """

    def __init__(self, spec: WarmupSpec, level: Level, turns: int = 1) -> None:
        self._spec = spec
        self._closed = level.kind == "closed"
        self._wave = max(2, round(level.value)) if self._closed else OPEN_WAVE
        self._required = spec.requests if spec.requests is not None else max(2, turns) * self._wave
        self._limit = self._required + EXTRA_WAVES * self._wave
        self._figures: list[float] = []
        self._mark = Observation(0.0, 0, 0, 0)
        self._inflight: list[int] = []
        self.steady = False

    def done(self, seen: Observation) -> bool:
        """Whether the window may begin now."""
        self._inflight.append(seen.inflight)
        if seen.finished - self._mark.finished >= self._wave and seen.now > self._mark.now:
            rate = (seen.chunks - self._mark.chunks) / (seen.now - self._mark.now)
            self._figures.append(rate if self._closed else sum(self._inflight) / len(self._inflight))
            self._mark = seen
            self._inflight.clear()
        if seen.finished < self._required:
            return seen.now >= self._spec.max_duration
        self.steady = self._required == 0 or self._agree()
        return self.steady or seen.finished >= self._limit or seen.now >= self._spec.max_duration

    def _agree(self) -> bool:
        if len(self._figures) < 2:
            return False
        before, after = self._figures[-2:]
        if self._closed:
            return abs(after - before) <= self._spec.tolerance * max(after, before)
        return abs(after - before) <= max(1.0, OPEN_AGREEMENT * max(after, before))
