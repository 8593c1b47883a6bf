"""RESULTS.md from rows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.search.arms import ARMS
from benchmarks.search.surfaces import BY_NAME

Row = Mapping[str, object]
HEAD = """# Searches compared

Written by `OPENBLAS_NUM_THREADS=1 python -m benchmarks.search`; the rows are in `rows.jsonl`. Medians over seeds; the
lowest seed in brackets where it says so.

* The surfaces are synthetic (`surfaces.py`): a roofline with queues, memory walls, a quality gate, and noise of 3 % in
  throughput and 5 % in p95 TTFT. They rank searches and say nothing about the speed of a real engine. Surfaces whose
  name begins with `held-` were not looked at while the default search was designed.
* A budget is counted in *plain trials*: the GPU seconds of a cold start with compilation and measurement (145 s). A
  start with compiled kernels is cheaper, a live change of the running engine costs its measurement only. Every arm pays
  the same prices; only `auto` chooses by them, and only `auto` without "restarts only" changes an engine live.
* *HV*: hypervolume of the true values of what was evaluated, over that of the true front. *Regret*: what is lost
  against the best throughput under the TTFT limit when one picks from the noisy measurements. *To 95 %*: plain trials'
  worth of GPU seconds until a configuration within 5 % of that best was evaluated (`> n`: not within the budget of n).
* "+ warm" starts with the baseline and five settings of the kind that public advice gives, and asks a memory model
  before a start; "cold" starts with the baseline and asks nothing. The grid is vLLM's auto_tune on today's layout.
* The Gaussian process of Optuna is in the table only where its extra (`gp`) was installed.
"""


def render(rows: Sequence[Row]) -> str:
    """The whole file."""
    parts = [HEAD]
    for name, surface in BY_NAME.items():
        mine = [row for row in rows if row["surface"] == name]
        if mine:
            seeds = len({row["seed"] for row in mine})
            limit = f"p95 TTFT limit {surface.slo_s * 1000:g} ms, {seeds} seeds"
            parts.append(f"## {name}{' (held out)' if surface.held_out else ''}\n\n{limit}.\n\n{_table(mine)}")
    parts.append(_where_not(rows))
    return "\n".join(parts)


def _table(rows: Sequence[Row]) -> str:
    lines = [
        "| search | HV 15 | HV 30 (lowest) | HV 60 | regret 30 | to 95 % | crashed | trials | CPU s/trial |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for arm in ARMS:
        mine = [row for row in rows if row["arm"] == arm.name]
        if mine:
            lines.append(
                f"| {arm.name} | {_horizon(mine, 'volumes', 0)} | {_horizon(mine, 'volumes', 1, lowest=True)} | "
                f"{_horizon(mine, 'volumes', 2)} | {_horizon(mine, 'regrets', 1)} | {_reached(mine)} | "
                f"{_median(mine, 'crashed'):.0%} | {_median(mine, 'trials'):.0f} | {_median(mine, 'overhead'):.2f} |"
            )
    return "\n".join(lines) + "\n"


def _column(rows: Sequence[Row], key: str, index: int) -> list[float]:
    found: list[float] = []
    for row in rows:
        values = row[key]
        if isinstance(values, Sequence) and len(values) > index:
            found.append(float(values[index]))
    return found


def _horizon(rows: Sequence[Row], key: str, index: int, *, lowest: bool = False) -> str:
    values = _column(rows, key, index)
    if not values:
        return "–"
    return f"{statistics.median(values):.2f}" + (f" ({min(values):.2f})" if lowest else "")


def _median(rows: Sequence[Row], key: str) -> float:
    return statistics.median(float(str(row[key])) for row in rows)


def _reached(rows: Sequence[Row]) -> str:
    budget = min(float(str(row["plain"])) for row in rows)
    times = [float(str(row["reached"])) if row["reached"] is not None else float("inf") for row in rows]
    middle = sorted(times)[len(times) // 2]
    share = f"{sum(time <= budget for time in times)} of {len(times)}"
    return f"{middle:.0f} ({share})" if middle <= budget else f"> {budget:.0f} ({share})"


def _where_not(rows: Sequence[Row]) -> str:
    """Where the default search is not the best, in words made from the rows."""
    lines = ["## Where the default search does not win\n"]
    for name in BY_NAME:
        for index, horizon in ((0, 15), (1, 30), (2, 60)):
            medians = {
                arm.name: statistics.median(values)
                for arm in ARMS
                if (
                    values := _column(
                        [r for r in rows if r["surface"] == name and r["arm"] == arm.name], "volumes", index
                    )
                )
            }
            ours = medians.get("auto")
            if ours is None:
                continue
            ahead = [f"{arm} {value:.2f}" for arm, value in medians.items() if value > ours + 0.005]
            if ahead:
                lines.append(f"* {name} at {horizon}: {', '.join(ahead)} against {ours:.2f}.")
    if len(lines) == 1:
        lines.append("In these rows it is nowhere behind another arm by more than half a point of hypervolume.")
    return "\n".join(lines) + "\n"
