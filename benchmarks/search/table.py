"""RESULTS.md from rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from benchmarks.search.arms import ARMS
from benchmarks.search.grounds import GROUNDS
from benchmarks.search.targets import at, budget, longest, select, targets, when

Row = Mapping[str, object]
HEAD = """# Searches compared

Written by `OPENBLAS_NUM_THREADS=1 python -m benchmarks.search`; the rows are in `rows.jsonl`, one line a study. Medians
over seeds (crashes: means); the lowest seed in brackets where it says so. Arms have different numbers of seeds and
budgets, because some think for minutes: the column says how many.

* The surfaces are synthetic (`surfaces.py`): a roofline with queues, memory walls, a quality gate, and noise of 3 % in
  throughput and 5 % in p95 TTFT. They rank searches and say nothing about the speed of a real engine. Surfaces whose
  name begins with `held-` were not looked at while the default search was designed. `simulator` is the project's own
  simulator (`simulator.py`), measured completely, so that its best is known.
* A budget is counted in *plain trials*: the GPU seconds of a cold start with compilation and measurement (145 s). A
  start with compiled kernels is cheaper, a live change of the running engine costs its measurement only. Every arm pays
  the same prices; only `auto` chooses by them, and only `auto` without "restarts only" changes an engine live. As in a
  study it starts engines with the baseline's 2,048 tokens a step where the memory model allows that, so that one start
  and one compilation serve every smaller step; what counts as found are the true values of a plain start all the same.
* *HV*: hypervolume of the true values of what was evaluated, over that of the true front. *Best*: best true throughput
  under the TTFT limit that was evaluated, over the best there is. *Regret*: what is lost against the best when one
  picks from the noisy measurements; 1 where the pick breaks the limit. *To 95 %*: plain trials' worth of GPU seconds
  until a configuration within 5 % of the best throughput was evaluated, and until 95 % of the optimal hypervolume
  (`> n`: most studies did not get there within the budget of n); read from the studies with the longest budget where
  there are five or more.
* "+ warm" starts with the baseline and five settings of the kind that public advice gives, and asks a memory model
  before a start; "cold" starts with the baseline and asks nothing. The grid is vLLM's auto_tune on today's layout.
  `auto` tries such a setting on top of an earlier one that has clearly helped and that it does not contradict.
* `gp + warm` is Optuna's Gaussian process, which needs the extra `gp`.
* On `simulator` an end of the front is 512 tokens a step with 256 sequences and with no fewer: graphs are captured up
  to twice the sequences, as in vLLM, and with 128 of them a step of 512 tokens has none and is slow. Neither setting
  shows it alone.
* A tenth of the hypervolume of `chat8` is one replica over all GPUs with 1,024 sequences. With the 256 of the warm
  start that layout is hopeless: requests queue. `auto` compares layouts at the limit of the whole engine (sequences
  times replicas), so it finds it, but late: about half of the studies after 60 plain trials.
* On `dense70` the setting that is within 5 % is the fifth trial of random's warm start and the sixth of `auto`, which
  brings one with more tokens a step forward, so that the next is a live change. Its whole warm start is cheaper (5.2
  against 5.6 plain trials).
"""


def render(rows: Sequence[Row]) -> str:
    """The whole file."""
    parts = [HEAD, targets(rows), _where_not(rows)]
    for name, ground in GROUNDS.items():
        mine = [row for row in rows if row["surface"] == name]
        if mine:
            limit = f"p95 TTFT limit {ground.slo_s * 1000:g} ms"
            parts.append(f"## {name}{' (held out)' if ground.held_out else ''}\n\n{limit}.\n\n{_table(mine)}")
    return "\n".join(parts)


def _table(rows: Sequence[Row]) -> str:
    lines = [
        "| search | seeds | HV 15 | HV 30 (lowest) | HV 60 | best 30 | regret 30 | to 95 % | to 95 % HV | crashed | "
        "trials (starts) | CPU s |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for arm in ARMS:
        mine = [row for row in rows if row["arm"] == arm.name]
        if mine:
            lines.append(
                f"| {arm.name} | {len(mine)} | {_horizon(mine, 'volumes', 0)} | "
                f"{_horizon(mine, 'volumes', 1, lowest=True)} | {_horizon(mine, 'volumes', 2)} | "
                f"{_horizon(mine, 'speeds', 1)} | {_horizon(mine, 'regrets', 1)} | {_reached(mine, 'reached')} | "
                f"{_reached(mine, 'covered')} | {_mean(mine, 'crashed'):.0%} | {_median(mine, 'trials'):.0f} "
                f"({_median(mine, 'restarts'):.0f}) | {_median(mine, 'overhead'):.2f} |"
            )
    return "\n".join(lines) + "\n"


def _horizon(rows: Sequence[Row], key: str, index: int, *, lowest: bool = False) -> str:
    """Median at a horizon; with the number of seeds where only some studies went so far."""
    values = at(rows, key, index)
    if not values:
        return "–"
    some = f" (n={len(values)})" if len(values) < len(rows) else ""
    return f"{statistics.median(values):.2f}" + (f" ({min(values):.2f})" if lowest else "") + some


def _median(rows: Sequence[Row], key: str) -> float:
    return statistics.median(float(str(row[key])) for row in rows)


def _mean(rows: Sequence[Row], key: str) -> float:
    return statistics.mean(float(str(row[key])) for row in rows)


def _reached(rows: Sequence[Row], key: str) -> str:
    rows = longest(rows)
    median, count = when(rows, key)
    share = f"{count} of {len(rows)}"
    return f"{median:.0f} ({share})" if math.isfinite(median) else f"> {budget(rows):.0f} ({share})"


def _where_not(rows: Sequence[Row]) -> str:
    """Where the default search is not the best, in words made from the rows."""
    lines = ["## Where the default search does not win\n"]
    for name in GROUNDS:
        for index, horizon in ((0, 15), (1, 30), (2, 60)):
            columns = {arm.name: at(select(rows, name, arm.name), "volumes", index) for arm in ARMS}
            medians = {arm: statistics.median(values) for arm, values in columns.items() if values}
            ours = medians.get("auto")
            if ours is None:
                continue
            ahead = [
                f"{arm} {value:.2f} (n={len(columns[arm])})" for arm, value in medians.items() if value > ours + 0.005
            ]
            if ahead:
                lines.append(f"* {name} at {horizon}: {', '.join(ahead)} against {ours:.2f}.")
    if len(lines) == 1:
        lines.append("In these rows it is nowhere behind another arm by more than half a point of hypervolume.")
    return "\n".join(lines) + "\n"
