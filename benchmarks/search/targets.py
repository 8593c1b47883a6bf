"""What the search is meant to reach, each with the figure that was measured. Sentences are made from rows alone."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.search.grounds import GROUNDS

Row = Mapping[str, object]
OURS, WARM, GRID, GP = "auto", "random + warm", "vLLM auto_tune grid", "gp + warm"
CHECKS = Path(__file__).with_name("checks.json")
"""Overhead and false claims, measured by `python -m benchmarks.search.checks`."""
GP_SECONDS = 1.5
WARM_TRIALS = 6
FEW = 5
"""So many studies with a longer budget are enough to read times from them alone."""


def targets(rows: Sequence[Row]) -> str:
    """The section with every target."""
    lines = [
        "## Targets\n",
        *_volume(rows),
        *_never_below(rows),
        *_times(rows),
        *_crashes(rows),
        *_gp(rows),
        *_checks(),
    ]
    return "\n".join(lines) + "\n"


def select(rows: Sequence[Row], surface: str, arm: str) -> list[Row]:
    return [row for row in rows if row["surface"] == surface and row["arm"] == arm]


def at(rows: Sequence[Row], key: str, index: int) -> list[float]:
    """A column at one horizon, of the rows whose budget reaches it."""
    found = [row[key] for row in rows]
    return [float(values[index]) for values in found if isinstance(values, Sequence) and len(values) > index]


def longest(rows: Sequence[Row]) -> list[Row]:
    """The studies with the longest budget where there are at least five of them, else all."""
    most = max((float(str(row["plain"])) for row in rows), default=0.0)
    long = [row for row in rows if float(str(row["plain"])) == most]
    return long if len(long) >= FEW else list(rows)


def when(rows: Sequence[Row], key: str) -> tuple[float, int]:
    """Median of a time, infinite where most studies did not get there, and how many did."""
    times = [math.inf if row[key] is None else float(str(row[key])) for row in rows]
    return (statistics.median_high(times) if times else math.inf), sum(map(math.isfinite, times))


def budget(rows: Sequence[Row]) -> float:
    return min((float(str(row["plain"])) for row in rows), default=0.0)


def _verdict(met: bool) -> str:
    return "**met**" if met else "**missed**"


def _volume(rows: Sequence[Row]) -> list[str]:
    values = at(select(rows, "moe8", OURS), "volumes", 1)
    if not values:
        return []
    median = statistics.median(values)
    low, high = statistics.quantiles(values, n=4)[::2] if len(values) > 1 else (median, median)
    spread = f"quartiles {low:.2f} to {high:.2f}, lowest {min(values):.2f}, {len(values)} seeds"
    return [
        "* At least 0.90 of the optimal hypervolume on moe8 at the GPU seconds of 30 plain trials: "
        f"median {median:.3f} ({spread}): {_verdict(median >= 0.90)}."
    ]


def _never_below(rows: Sequence[Row]) -> list[str]:
    below: list[str] = []
    pairs = worse = 0
    for name in GROUNDS:
        ours, warm = select(rows, name, OURS), select(rows, name, WARM)
        for index, horizon in enumerate((15, 30, 60)):
            mine, theirs = at(ours, "volumes", index), at(warm, "volumes", index)
            if mine and theirs and statistics.median(mine) < statistics.median(theirs):
                below.append(f"{name} at {horizon}")
        found = {row["seed"]: row for row in warm}
        for row in ours:
            if row["seed"] in found:
                pairs += 1
                worse += at([row], "volumes", 1)[0] < at([found[row["seed"]]], "volumes", 1)[0]
    where = f"below on {', '.join(below)}" if below else "on no surface and at no budget is the median below"
    return [
        f"* Never below random with the same warm start: {where}: {_verdict(not below)}. Seed by seed at 30: below in "
        f"{worse} of {pairs} pairs."
    ]


def _times(rows: Sequence[Row]) -> list[str]:
    head = (
        "* GPU seconds until 95 % of the best known, at most a third of warm random's and a fifth of the grid's. In "
        "plain trials (145 s on all GPUs of the surface), medians; `>` where most studies did not get there in their "
        "budget, so that a ratio is an upper bound:\n"
    )
    table = [
        "| surface | goal | auto | random + warm | grid | of random | of the grid | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, ground in GROUNDS.items():
        ours, warm, grid = (longest(select(rows, name, arm)) for arm in (OURS, WARM, GRID))
        if not ours or not warm:
            continue
        for key, goal in (("reached", "throughput"), ("covered", "hypervolume")):
            mine, theirs, gridded = (_bound(some, key) for some in (ours, warm, grid))
            verdict = _met(mine, theirs, gridded)
            shown = f"{name}{' (held out)' if ground.held_out else ''}"
            count = f" ({when(ours, key)[1]} of {len(ours)})"
            table.append(
                f"| {shown} | {goal} | {_text(mine)}{count} | {_text(theirs)} | {_text(gridded)} | "
                f"{_ratio(mine, theirs)} | {_ratio(mine, gridded)} | {verdict} |"
            )
    note = (
        "\nThe grid ends after some eleven configurations; *never*: none of them is good enough. *Start* means that a "
        "setting of the warm start is already within 5 %: then every warm arm arrives "
        "with it, and no search can be three times faster. *Open*: most studies of `auto` did not arrive, but their "
        "budget ended before a third of warm random's.\n"
    )
    return [head, *table, note]


def _bound(rows: Sequence[Row], key: str) -> tuple[float, bool]:
    """The median time, or the budget and False where it was not reached; infinite where nothing was left to try."""
    median, _ = when(rows, key)
    if math.isfinite(median):
        return median, True
    exhausted = all(str(row["arm"]) == GRID for row in rows)
    return (math.inf if exhausted else budget(rows)), False


def _met(mine: tuple[float, bool], theirs: tuple[float, bool], grid: tuple[float, bool]) -> str:
    if theirs[1] and theirs[0] <= 6.0:
        return "start"
    if not mine[1]:
        return "open" if mine[0] < theirs[0] / 3 else "missed"
    return "met" if mine[0] <= theirs[0] / 3 and mine[0] <= grid[0] / 5 else "missed"


def _text(found: tuple[float, bool]) -> str:
    if math.isinf(found[0]):
        return "never"
    return f"{found[0]:.0f}" if found[1] else f"> {found[0]:.0f}"


def _ratio(mine: tuple[float, bool], theirs: tuple[float, bool]) -> str:
    if not mine[1] or math.isinf(theirs[0]):
        return "–"
    return f"{'' if theirs[1] else '< '}{mine[0] / theirs[0]:.2f}"


def _crashes(rows: Sequence[Row]) -> list[str]:
    shares: dict[str, float] = {}
    for row in rows:
        arm = str(row["arm"])
        if row["surface"] == "crash40" and arm not in shares:
            shares[arm] = statistics.mean(float(str(one["crashed"])) for one in select(rows, "crash40", arm))
    if OURS not in shares:
        return []
    listed = ", ".join(f"{arm} {share:.0%}" for arm, share in sorted(shares.items(), key=lambda item: item[1]))
    return [
        "* At most 10 % of trials lost to crashes where 49 % of random draws crash (crash40), mean over seeds: "
        f"{listed}. The default: {_verdict(shares[OURS] <= 0.10)}."
    ]


def _gp(rows: Sequence[Row]) -> list[str]:
    """A proposal asks for one to six suggestions, so its time bounds that of a suggestion from above.

    The baseline and the five settings of the warm start cost nothing and are taken out of the mean.
    """
    found = [(float(str(row["overhead"])), int(str(row["trials"]))) for row in rows if row["arm"] == GP]
    means = [mean * trials / (trials - WARM_TRIALS) for mean, trials in found if trials > WARM_TRIALS]
    if not means:
        return []
    median, most = statistics.median(means), max(means)
    within = sum(mean < GP_SECONDS for mean in means)
    return [
        f"* Ladders keep a suggestion of the Gaussian process under {GP_SECONDS} s of CPU; a proposal asks for one to "
        f"six. Mean of a study per proposal: median {median:.2f} s, dearest {most:.2f} s, {within} of {len(means)} "
        f"studies below: {_verdict(median < GP_SECONDS)}."
    ]


def _checks() -> list[str]:
    if not CHECKS.exists():
        return []
    found = json.loads(CHECKS.read_text())
    overhead, claims = found["overhead"], found["claims"]
    times = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in overhead.items())
    rates = ", ".join(f"{name}: {share:.1%}" for name, share in claims.items())
    return [
        "* Sampler overhead under 1 s of CPU a trial after 1,000 trials on moe8, dearest of three proposals: "
        f"{times}: "
        f"{_verdict(max(overhead.values()) < 1)}.",
        "* False claims of an improvement between identical arms, at most 5 in 100 studies of three finalists, three "
        f"rounds and two objectives ({found['studies']} studies each): {rates}: "
        f"{_verdict(max(claims.values()) <= 0.05)}.",
    ]
