"""The true front of a surface, and what a study has found of it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autotune.search.front import hypervolume, non_dominated
from benchmarks.search.simulator import SimulatorSurface, every_good
from benchmarks.search.study import COLUMNS, DRAFTS, GRAPHS, WEIGHTS, Ground, baseline_point, columns_of, space_of
from benchmarks.search.surfaces import Surface, Truth, evaluate

CACHE = Path(__file__).parent / "fronts.json"


@dataclass(frozen=True)
class Best:
    """What is possible on a surface.

    Attributes:
        front: log losses (minus log throughput, log TTFT in seconds) of the true feasible front.
        reference: worst corner of the hypervolume: 30 % of the best throughput, three times the SLO.
        throughput: best true throughput under the SLO and the gate, tokens per second.
        volume: hypervolume of the true front.
    """

    front: NDArray
    reference: tuple[float, float]
    throughput: float
    volume: float

    def share(self, truths: Sequence[tuple[float, float, float, bool]]) -> float:
        """Hypervolume of true values of what was evaluated, as a share of the true front's."""
        rows = [(-np.log(speed), np.log(ttft)) for speed, ttft, _, good in truths if good]
        return hypervolume(np.asarray(rows), self.reference) / self.volume if rows else 0.0

    def growth(self, truths: Sequence[tuple[float, float, float, bool]]) -> NDArray:
        """`share` after every configuration in turn."""
        shares, kept, last = [], [], 0.0
        for truth in truths:
            row = (-np.log(truth[0]), np.log(truth[1]))
            if truth[3] and not any(other[0] <= row[0] and other[1] <= row[1] for other in kept):
                kept.append(row)
                last = hypervolume(np.asarray(kept), self.reference) / self.volume
            shares.append(last)
        return np.asarray(shares)


def best_of(surface: Ground) -> Best:
    """The true front: from the cache file, or searched by many random points and rounds of mutation.

    The simulator's is complete: every configuration of its space is asked.
    """
    cache = json.loads(CACHE.read_text()) if CACHE.exists() else {}
    # The limit decides nothing about the front; everything else does.
    assert isinstance(surface, Surface | SimulatorSurface)
    key = f"{surface.name} {zlib.crc32(repr(replace(surface, slo_s=0.0)).encode()):08x}"
    if key not in cache:
        cache[key] = _search(surface) if isinstance(surface, Surface) else _front(every_good(surface))
        CACHE.write_text(json.dumps(cache) + "\n")
    rows = np.asarray(cache[key])
    losses = np.column_stack([-np.log(rows[:, 0]), np.log(rows[:, 1])])
    reference = (float(-np.log(0.3 * rows[:, 0].max())), float(np.log(3 * surface.slo_s)))
    throughput = float(rows[rows[:, 1] <= surface.slo_s, 0].max())
    return Best(losses, reference, throughput, hypervolume(losses, reference))


def _front(figures: NDArray) -> list[list[float]]:
    """The non-dominated rows of throughput and TTFT."""
    kept = figures[non_dominated(np.column_stack([-np.log(figures[:, 0]), np.log(figures[:, 1])]))]
    return [[round(float(speed), 3), round(float(ttft), 6)] for speed, ttft in kept]


def _search(surface: Surface, draws: int = 60_000, rounds: int = 60) -> list[list[float]]:
    rng = np.random.default_rng(0)
    space = space_of(surface)
    sizes = np.array([len(parameter.values) for parameter in space.parameters])
    found = rng.integers(0, sizes, size=(draws, len(sizes)))
    kept, figures = _keep(surface, found)
    for _ in range(rounds):
        parents = kept[rng.integers(0, len(kept), 8000)]
        changed = rng.random(parents.shape) < 1.5 / len(sizes)
        children = np.where(changed, rng.integers(0, sizes, size=parents.shape), parents)
        kept, figures = _keep(surface, np.unique(np.concatenate([kept, children]), axis=0))
    return [[round(float(speed), 3), round(float(ttft), 6)] for speed, ttft in figures]


def _keep(surface: Surface, indices: NDArray) -> tuple[NDArray, NDArray]:
    """The non-dominated good rows and their figures."""
    truth = evaluate(surface, index_columns(surface, indices))
    good = truth.good(surface)
    losses = np.column_stack([-np.log(truth.throughput[good]), np.log(truth.ttft_s[good])])
    order = np.lexsort((losses[:, 1], losses[:, 0]))
    lowest = np.minimum.accumulate(losses[order, 1])
    first = np.r_[True, losses[order, 1][1:] < lowest[:-1]]
    chosen = order[first]
    chosen = chosen[non_dominated(losses[chosen])]
    rows = indices[good][chosen]
    return rows, np.column_stack([truth.throughput[good][chosen], truth.ttft_s[good][chosen]])


def index_columns(surface: Surface, indices: NDArray) -> dict[str, NDArray]:
    """Columns of settings from value indices, without a Python object per row."""
    from autotune.space.layout import Layout

    space = space_of(surface)
    codes: Mapping[str, tuple[str, ...]] = {"weights": WEIGHTS, "graph": GRAPHS, "draft": DRAFTS}
    count = len(indices)
    columns: dict[str, NDArray] = {"tp": np.ones(count), "dp": np.ones(count), "ep": np.zeros(count, bool)}
    for column, parameter in enumerate(space.parameters):
        chosen = indices[:, column]
        if parameter.kind == "layout":
            layouts = [Layout.parse(str(value)) for value in parameter.values]
            columns["tp"] = np.array([one.tensor for one in layouts])[chosen]
            columns["dp"] = np.array([one.data for one in layouts])[chosen]
            columns["ep"] = np.array([one.expert for one in layouts])[chosen]
        elif parameter.name in codes:
            columns[parameter.name] = chosen
        else:
            name = COLUMNS.get(parameter.name, parameter.name)
            columns[name] = np.array([float(value) for value in parameter.values])[chosen]  # type: ignore[arg-type]
    return columns


def describe(surface: Surface) -> str:
    """One line of figures: crashes and gate failures of random draws, baseline against the best."""
    rng = np.random.default_rng(1)
    sizes = np.array([len(parameter.values) for parameter in space_of(surface).parameters])
    truth: Truth = evaluate(surface, index_columns(surface, rng.integers(0, sizes, size=(20_000, len(sizes)))))
    base = evaluate(surface, columns_of([baseline_point(surface)], surface))
    best = best_of(surface)
    crashed, gate = np.mean(truth.failed > 0), np.mean(truth.loss > surface.gate)
    today = f"baseline {base.throughput[0]:.0f} tok/s {base.ttft_s[0] * 1e3:.0f} ms (failed {base.failed[0]})"
    return (
        f"{surface.name}: crashes {crashed:.0%}, gate fails {gate:.0%}, good {np.mean(truth.good(surface)):.0%}; "
        f"{today}, best under the SLO {best.throughput:.0f} tok/s; front of {len(best.front)}"
    )
