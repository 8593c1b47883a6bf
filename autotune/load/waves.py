"""Whole waves of a closed loop: what a window may hold, found in the ends of requests.

Streams with answers of similar lengths march in step: all read their prompts, then all write. A window with a piece of
a wave has too much of one or of the other, so it begins and ends with waves. The same rule is asked twice: while the
load runs, with the ends as the clients tell them, so that no time is spent on a piece that would not count; and
afterwards with the ends as they were.
"""

from __future__ import annotations

import math

import numpy as np

from autotune.load.records import Floats

BURST = 0.2
"""A pause of more than this share of a wave ends a burst of requests that ended together."""
COARSE = 15
"""Waves shorter than so many readings are not told apart surely while the load runs; then one more is waited for."""


def wave_ends(ends: Floats, begin: float, end: float, streams: int, *, first: int | None = None) -> tuple[float, ...]:
    """The ends of whole waves between two times: of a request, and of every `streams`-th after it.

    Where ends come in bursts, waves begin with the first of one: those keep time, while the last may be late. The burst
    that began nearest to `begin` is taken, so that the first wave may begin up to half a wave before it: a warm-up that
    counts requests is over with the last of a burst, and the wave that this burst begins would be lost.

    Args:
        ends: seconds at which requests ended without error, ascending, of the whole run.
        begin, end: the asked window in the same seconds.
        streams: concurrency.
        first: ends before the one to begin with, where that is known.

    Returns:
        Ascending times; one more than there are waves. Empty where there are not two of them.
    """
    low, high = np.searchsorted(ends, (begin, end))
    if first is None:
        if high - low <= 2 * streams:
            return ()
        burst = burst_near(ends, begin, end, streams)
        first = int(low) if burst is None else burst
    count = (high - 1 - first) // streams
    return tuple(ends[first : first + count * streams + 1 : streams].tolist()) if count >= 2 else ()


def burst_near(ends: Floats, begin: float, end: float, streams: int, grain: float = 0.0) -> int | None:
    """How many ended before the burst that waves begin with, or None where ends come in no bursts (see `wave_ends`).

    Args:
        grain: seconds within which `ends` are not told apart; a pause is longer than three.
    """
    low, high = np.searchsorted(ends, (begin, end))
    held = (high - low - 1) // streams
    if held < 1:
        return None
    wave = (ends[high - 1] - ends[high - 1 - held * streams]) / held
    # Only what can begin the window is looked at: this is asked while the load runs, of ever more ends.
    earliest = int(np.searchsorted(ends, begin - wave / 2))
    latest = max(int(np.searchsorted(ends, begin + wave / 2, side="right")), int(low) + streams)
    pauses = np.diff(ends[earliest : min(latest, high)], prepend=ends[earliest - 1] if earliest else -np.inf)
    firsts = earliest + np.flatnonzero(pauses > max(BURST * wave, 3 * grain))
    near = firsts[np.abs(ends[firsts] - begin) <= wave / 2]
    after = firsts[(firsts >= low) & (firsts < low + streams)]
    candidates = near[np.argsort(np.abs(ends[near] - begin))] if len(near) else after
    return int(candidates[0]) if len(candidates) else None


class WaveWatch:
    """Says when a closed window may end: with a wave, at the one nearest to the asked duration.

    Args:
        streams: concurrency.
        grain: seconds between two readings.
    """

    def __init__(self, streams: int, grain: float) -> None:
        self._streams, self._grain = streams, grain
        self._times: list[float] = []
        self._counts: list[int] = []
        self._begin = 0.0
        self._known = 0
        self.first: int | None = None
        """Ends before the one that the window was kept open from, where readings tell it: its waves are counted from
        there again. Two bursts may be as near to the begin as each other, or a pause just long enough for one: with
        the times as they were the other one could be taken, and a wave be lost."""

    def note(self, at: float, finished: int) -> None:
        """A reading: `finished` requests ended until `at`, in seconds since the start of the load."""
        if finished > (self._counts[-1] if self._counts else 0):
            self._times.append(at)
            self._counts.append(finished)

    def begin(self, at: float, finished: int) -> None:
        """The window begins at `at`, and all that ended before is told of by now: `finished` requests.

        Ends are told late. One before the window that was noted inside it would stand for the last one of a wave, and
        the window would end that much too early to hold this wave.
        """
        before = math.nextafter(at, -math.inf)
        self._times = [min(time, before) for time in self._times]
        self.note(before, finished)
        self._begin = at

    def over(self, duration: float, needed: int) -> bool:
        """Whether the window is over with the wave that just ended.

        Args:
            duration: asked seconds.
            needed: waves that it must hold.
        """
        if not self._counts:
            return False
        ends = np.repeat(self._times, np.diff(self._counts, prepend=0))
        low = int(np.searchsorted(ends, self._begin))
        if len(ends) - low <= 2 * self._streams:
            return False
        burst = burst_near(ends, self._begin, np.inf, self._streams, self._grain)
        first = low if burst is None else burst
        waves = wave_ends(ends, self._begin, np.inf, self._streams, first=first)
        count = len(waves) - 1
        if count < 1:
            return False
        elapsed = waves[-1] - waves[0]
        length = elapsed / count
        coarse = length < COARSE * self._grain
        self.first = None if coarse and burst is None else first
        if count <= self._known:
            return False
        self._known = count
        if coarse:
            count, elapsed = count - 1, elapsed - length
        return count >= needed and elapsed + length / 2 >= duration
