"""`python -m benchmarks.search`: compare searches on the surfaces; rows go to rows.jsonl, the table to RESULTS.md.

Rows that exist are not computed again, so a run can be interrupted and continued. Set OPENBLAS_NUM_THREADS=1: the
matrices are small, and threads only get in each other's way.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autotune.errors import EnvironmentFault
from benchmarks.search.arms import ARMS, Arm, proposer_of
from benchmarks.search.grounds import GROUNDS, study_on
from benchmarks.search.study import OBJECTIVES, Ground, SimulatedStudy
from benchmarks.search.table import render
from benchmarks.search.truth import Best, best_of

FOLDER = Path(__file__).parent
ROWS = FOLDER / "rows.jsonl"
HORIZONS = (15, 30, 60)
"""Budgets in plain trials: the GPU seconds of so many cold starts with their measurement."""
LONG = 540
"""Budget of arms that think for free: to tell whether another is three times faster than one that never arrives."""
LATE = 120
"""Budget that shows when a search arrives that is not there after the longest horizon."""


@dataclass(frozen=True)
class Row:
    """One study of one arm on one surface. Budgets and times in plain trials' worth of GPU seconds.

    Attributes:
        volumes: share of the optimal hypervolume after each horizon.
        speeds: best true throughput under the SLO that was evaluated, over the best known, after each horizon.
        regrets: 1 - true throughput of the configuration one would pick over the best, after each horizon.
        reached: until a configuration within 5 % of the best throughput under the SLO was evaluated; None: it was not.
        covered: until 95 % of the optimal hypervolume; None: it was not reached.
        trials: configurations tried.
        restarts: engine starts among them.
        crashed: share of trials that crashed.
        overhead: CPU seconds per proposal.
    """

    surface: str
    arm: str
    seed: int
    plain: int
    volumes: tuple[float, ...]
    speeds: tuple[float, ...]
    regrets: tuple[float, ...]
    reached: float | None
    covered: float | None
    trials: int
    restarts: int
    crashed: float
    overhead: float


def play(surface: Ground, arm: Arm, seed: int, plain: int) -> Row:
    """Run one study until the GPU seconds of `plain` plain trials are used up."""
    best = best_of(surface)
    study = study_on(surface, seed, live=arm.live)
    proposer = proposer_of(arm, study)
    spent, cpu = 0.0, 0.0
    while spent < plain * study.costs.plain:
        before = time.process_time()
        proposal = proposer.propose(study.history)
        cpu += time.process_time() - before
        if proposal is None:
            break
        spent += study.run(proposal).seconds
    ends = np.cumsum(study.seconds) / study.costs.plain
    counts = [int(np.searchsorted(ends, horizon + 1e-9, side="right")) for horizon in HORIZONS if horizon <= plain]
    speeds = np.array([
        speed / best.throughput if good and ttft <= surface.slo_s else 0.0 for speed, ttft, _, good in study.truths
    ])  # fmt: skip
    crashes = sum(record.outcome.kind != "measured" for record in study.history)
    return Row(
        surface.name, arm.name, seed, plain,
        volumes=tuple(round(best.share(study.truths[:count]), 4) for count in counts),
        speeds=tuple(round(float(speeds[:count].max(initial=0.0)), 4) for count in counts),
        regrets=tuple(round(regret(study, best, count), 4) for count in counts),
        reached=_when(ends, speeds >= 0.95),
        covered=_when(ends, best.growth(study.truths) >= 0.95),
        trials=len(study.history), restarts=sum(record.restarted for record in study.history),
        crashed=round(crashes / len(study.history), 4), overhead=round(cpu / len(study.history), 4),
    )  # fmt: skip


def _when(ends: NDArray, holds: NDArray) -> float | None:
    """When something held for the first time."""
    found = np.flatnonzero(holds)
    return round(float(ends[found[0]]), 2) if len(found) else None


def regret(study: SimulatedStudy, best: Best, count: int) -> float:
    """What is lost by choosing from the noisy measurements; 1 where nothing could be chosen or the choice is wrong."""
    limit = 1000 * study.surface.slo_s
    chosen, speed = None, 0.0
    for index, record in enumerate(study.history[:count]):
        values = OBJECTIVES.values(record)
        if values is not None and OBJECTIVES.feasible(record) and values[1] <= limit and values[0] > speed:
            chosen, speed = index, values[0]
    if chosen is None:
        return 1.0
    throughput, ttft, _, good = study.truths[chosen]
    # A choice at the very limit may truly be a little beyond it; half of the noise is forgiven.
    return 1 - throughput / best.throughput if good and ttft <= 1.03 * study.surface.slo_s else 1.0


def wanted(arguments: argparse.Namespace) -> Iterator[tuple[Ground, Arm, int, int]]:
    """Seeds in the outer loop, so that an interrupted run has a complete table of fewer seeds."""
    for seed in range(arguments.first, arguments.seeds):
        for name in arguments.surfaces:
            for arm in ARMS:
                if not arguments.arms or arm.name in arguments.arms:
                    # Arms that cost no CPU run longer, to see when they arrive.
                    cheap = arm.proposer in ("random", "auto_tune")
                    yield GROUNDS[name], arm, seed, LONG if cheap else arguments.plain


def read_rows() -> list[Row]:
    """The longest study of every surface, arm and seed."""
    if not ROWS.exists():
        return []
    found: dict[tuple[str, str, int], Row] = {}
    for line in ROWS.read_text().splitlines():
        values = json.loads(line).items()
        row = Row(**{name: tuple(value) if isinstance(value, list) else value for name, value in values})
        key = (row.surface, row.arm, row.seed)
        if key not in found or found[key].plain <= row.plain:
            found[key] = row
    return list(found.values())


def main() -> None:
    """Parse, run what is missing, render."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="first seed, to share the work between processes")
    parser.add_argument("--plain", type=int, default=30, choices=(*HORIZONS, LATE), help="budget in plain trials")
    parser.add_argument("--surfaces", nargs="*", default=list(GROUNDS), choices=list(GROUNDS))
    parser.add_argument("--arms", nargs="*", default=[], choices=[arm.name for arm in ARMS])
    parser.add_argument("--minutes", type=float, default=None, help="stop after so long and render what there is")
    arguments = parser.parse_args()
    began = time.monotonic()
    done = {(row.surface, row.arm, row.seed): row.plain for row in read_rows()}
    missing: set[str] = set()
    for surface, arm, seed, plain in wanted(arguments):
        if arguments.minutes is not None and time.monotonic() - began > 60 * arguments.minutes:
            break
        if done.get((surface.name, arm.name, seed), 0) >= plain or arm.name in missing:
            continue
        try:
            row = play(surface, arm, seed, plain)
        except EnvironmentFault as fault:
            missing.add(arm.name)
            print(f"left out: {arm.name}: {fault.message}")
            continue
        with ROWS.open("a") as file:
            file.write(json.dumps(asdict(row)) + "\n")
    text = render([asdict(row) for row in read_rows()])
    (FOLDER / "RESULTS.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
