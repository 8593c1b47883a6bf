"""Eight places against one on the surfaces of `benchmarks.search`: rooflines with queues, memory walls and a gate.

The proposer is asked as the loop asks it: one proposal whenever a place becomes free, told of what runs and of what has
ended. Places have an engine each, which takes live changes, and share what was compiled. Seconds are those of
`benchmarks.search.study.Costs`; proposals take none.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autotune.outcome import Proposal, TrialRecord
from autotune.search.stop import counted
from autotune.space.config import EngineConfig
from benchmarks.search.arms import ARMS, proposer_of
from benchmarks.search.grounds import GROUNDS, study_on
from benchmarks.search.study import Costs, SimulatedStudy
from benchmarks.search.truth import best_of

PLACES = (1, 8)
GOALS = (0.80, 0.90, 0.95)
"""Shares of the true front's hypervolume."""
CONFIRM_S = 6 * (Costs().start + Costs().measure)
"""Three rounds of one finalist and the baseline, afresh and alone."""


@dataclass(frozen=True)
class Search:
    """One search.

    Attributes:
        ends: seconds at which trials ended, in that order.
        shares: of the true front's hypervolume that was found by then, true values of what held its limits.
    """

    ends: NDArray[np.float64]
    shares: NDArray[np.float64]

    def until(self, goal: float) -> float:
        """Seconds until a share was found; infinite where it never was."""
        there = np.flatnonzero(self.shares >= goal)
        return float(self.ends[there[0]]) if len(there) else float("inf")


def play(name: str, places: int, trials: int, seed: int) -> Search:
    """Search a surface until so many trials have ended."""
    ground = GROUNDS[name]
    study = study_on(ground, seed, live=True)
    proposer = proposer_of(ARMS[0], study)
    engines: dict[int, EngineConfig | None] = {}
    running: dict[int, Proposal] = {}
    ended: list[TrialRecord] = []
    clock: list[tuple[float, int]] = []
    free, now = list(range(places)), 0.0
    order: list[tuple[float, int]] = []
    begun: dict[int, TrialRecord] = {}
    while True:
        left = trials - len(counted(ended))
        waiting: list[int] = []
        for place in free:
            proposal = None
            if len(running) < left:
                proposal = proposer.propose(tuple(ended), running=tuple(running.values()), place=place)
            # Beside the baseline, which is the first, only what is known to be good begins.
            if proposal is None or (0 in running and proposal.origin != "expert"):
                waiting.append(place)
                continue
            record = _begin(study, proposal, place, engines, now)
            running[record.number], begun[record.number] = proposal, record
            heapq.heappush(clock, (now + record.seconds, record.number))
        if not clock:
            break
        now, number = heapq.heappop(clock)
        del running[number]
        order.append((now, number))
        ended = sorted([*ended, begun[number]], key=lambda record: record.number)
        free = [*waiting, begun[number].place]
    best = best_of(ground)
    truths = [study.truths[number] for _, number in order]
    return Search(np.asarray([end for end, _ in order]), best.growth(truths))


def _begin(
    study: SimulatedStudy, proposal: Proposal, place: int, engines: dict[int, EngineConfig | None], now: float
) -> TrialRecord:
    """Run a trial on the engine of its place. The study numbers it; who proposes hears of it when it has ended."""
    study.running = engines.get(place)
    record = study.run(proposal)
    engines[place] = study.running
    return replace(record, started_at=now, place=place)


def table(names: Sequence[str], trials: int, seeds: int) -> str:
    """One row a surface. Shares and trials are means over seeds, times to a share medians."""
    head = (
        "| surface | trials | share of the front, 1 place | 8 places | 8 less 1 ± error | search | whole study | "
        f"trials of 8 places for what 1 found | search then | {' | '.join(f'to {goal:.0%}' for goal in GOALS)} |\n"
        f"|{'---|' * (9 + len(GOALS))}"
    )
    return "\n".join([head, *(_row(name, trials, seeds) for name in names)])


def _row(name: str, trials: int, seeds: int) -> str:
    """Many places get half as many trials more, to see how many they need for what one place found."""
    alone = [play(name, PLACES[0], trials, seed) for seed in range(seeds)]
    beside = [play(name, PLACES[1], trials + trials // 2, seed) for seed in range(seeds)]
    found = np.asarray([one.shares[-1] for one in alone])
    gap = np.asarray([one.shares[trials - 1] for one in beside]) - found
    error = gap.std(ddof=1) / np.sqrt(seeds) if seeds > 1 else float("nan")
    alone_s = float(np.mean([one.ends[-1] for one in alone]))
    shares, ends = (_mean([getattr(one, part) for one in beside]) for part in ("shares", "ends"))
    enough = np.flatnonzero(shares >= found.mean())
    needed = f"{enough[0] + 1} | x{alone_s / ends[enough[0]]:.1f}" if len(enough) else f"more than {len(shares)} | –"
    search_s, sooner = ends[trials - 1], " | ".join(_sooner(alone, beside, goal) for goal in GOALS)
    return (
        f"| {name} | {trials} | {found.mean():.3f} | {(found + gap).mean():.3f} | {gap.mean():+.3f} ± {error:.3f} | "
        f"x{alone_s / search_s:.1f} | x{(alone_s + CONFIRM_S) / (search_s + CONFIRM_S):.1f} | {needed} | {sooner} |"
    )


def _mean(rows: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Mean over searches after every trial, as far as all of them went."""
    least = min(map(len, rows))
    return np.asarray(np.mean([row[:least] for row in rows], axis=0))


def _sooner(alone: Sequence[Search], beside: Sequence[Search], goal: float) -> str:
    """The median time of one place over that of many; a dash where half of either never arrived."""
    times = [statistics.median(one.until(goal) for one in arm) for arm in (alone, beside)]
    return f"x{times[0] / times[1]:.1f}" if np.isfinite(times).all() else "–"
