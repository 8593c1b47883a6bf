"""Eight GPUs against one: the same budget of trials on the same surface, and the seconds on the clock."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autotune.outcome import Measured, TrialRecord
from autotune.search.front import hypervolume
from benchmarks.scale.clock import run_virtually
from benchmarks.scale.world import Played, play

GPUS = (1, 8)
CONFIRMED = ("confirm.rounds=3", "confirm.finalists=1", "confirm.minimise=false")


@dataclass(frozen=True)
class Race:
    """One study.

    Attributes:
        trials: its budget.
        gpus: places.
        search_s: until the search ended.
        whole_s: with the confirmation, which always runs alone.
        best: output throughput of the best configuration, without noise.
        volume: hypervolume of the front, without noise.
        reached: seconds until the hypervolume of one GPU's whole search was there; infinite where it never was.
    """

    trials: int
    gpus: int
    search_s: float
    whole_s: float
    best: float
    volume: float
    reached: float


def table(seeds: int, proposer: str, budgets: list[int], more: float) -> str:
    """Medians over seeds; the most GPUs also get a share `more` of trials."""
    head = (
        "| trials | GPUs | search | whole study | search against one GPU | whole study against one GPU | "
        "best throughput against one GPU | front's hypervolume against one GPU | reached one GPU's hypervolume, "
        "how much sooner than its search ended |\n"
        "|---|---|---|---|---|---|---|---|---|"
    )
    return "\n".join([head, *(line for trials in budgets for line in _rows(trials, seeds, proposer, more))])


def _rows(trials: int, seeds: int, proposer: str, more: float) -> Iterator[str]:
    """One GPU; more GPUs with the same budget; the most GPUs with more trials, for who knows less proposes worse."""
    one = [_race(1, trials, seed, proposer) for seed in range(seeds)]
    yield _row(one, one)
    for gpus, budget in (*((count, trials) for count in GPUS[1:]), (GPUS[-1], round(trials * (1 + more)))):
        yield _row(one, [_race(gpus, budget, seed, proposer, one[seed].volume) for seed in range(seeds)])


def _row(one: list[Race], mine: list[Race]) -> str:
    pairs = list(zip(one, mine, strict=True))
    search = statistics.median(first.search_s / other.search_s for first, other in pairs)
    whole = statistics.median(first.whole_s / other.whole_s for first, other in pairs)
    best, volume = [b.best / a.best for a, b in pairs], [b.volume / a.volume for a, b in pairs]
    there = [first.search_s / other.reached for first, other in pairs if other.reached < float("inf")]
    reached = f"{len(there)} of {len(mine)}" + (f", x{statistics.median(there):.2f}" if there else "")
    return (
        f"| {mine[0].trials} | {mine[0].gpus} | {statistics.median(other.search_s for other in mine) / 3600:.2f} h | "
        f"{statistics.median(other.whole_s for other in mine) / 3600:.2f} h | x{search:.2f} | x{whole:.2f} | "
        f"{_spread(best)} | {_spread(volume)} | {reached} |"
    )


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def _race(gpus: int, trials: int, seed: int, proposer: str, goal: float | None = None) -> Race:
    with tempfile.TemporaryDirectory(prefix="autotune-scale-") as name:
        played, whole, _ = run_virtually(
            play(Path(name), gpus=gpus, trials=trials, seed=seed, proposer=proposer, settings=CONFIRMED)
        )
    searched = [r for r in played.result.records if r.proposal.origin != "confirm"]
    began = min(record.started_at for record in searched)
    ends = sorted(searched, key=lambda record: record.started_at + record.seconds)
    search = ends[-1].started_at + ends[-1].seconds - began
    truths = _truths(played, ends)
    volume = _volume(truths)
    reached = search if goal is None else _reached(ends, truths, goal, began)
    return Race(trials, gpus, search, whole, float(np.exp(-truths[:, 0].min())), volume, reached)


def _truths(played: Played, records: list[TrialRecord]) -> np.ndarray:
    """Log losses without noise; a row of infinities where nothing was measured."""
    rows = []
    for record in records:
        true = played.executor.outcome(dict(record.proposal.point), None)
        if isinstance(true, Measured) and isinstance(record.outcome, Measured):
            level = true.load.levels[-1]
            throughput, ttft = level.estimate("output_throughput"), level.estimate("ttft_p95_ms")
            assert throughput is not None and ttft is not None
            rows.append((-np.log(throughput.value), np.log(ttft.value)))
        else:
            rows.append((np.inf, np.inf))
    return np.asarray(rows)


def _volume(truths: np.ndarray) -> float:
    """Area below 900 ms and above 1,500 tok/s, in logarithms."""
    return hypervolume(truths[np.isfinite(truths[:, 0])], REFERENCE)


REFERENCE = (-float(np.log(1500.0)), float(np.log(900.0)))


def _reached(ends: list[TrialRecord], truths: np.ndarray, goal: float, began: float) -> float:
    low, high = 1, len(ends)
    if _volume(truths) < goal:
        return float("inf")
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _volume(truths[:middle]) >= goal else (middle + 1, high)
    return ends[low - 1].started_at + ends[low - 1].seconds - began
