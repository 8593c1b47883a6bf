"""How often two windows of one configuration agree within their intervals, from finished studies.

    python -m benchmarks.load.repeats docs/evidence/h200-glm-4-9b/*-run.db

An interval of a window tells what varied within it. What differs from start to start, or drifts more slowly than a
window is long, it cannot know: this is what that amounts to. Every pair of windows of one configuration and load level
in one study counts; they agree where their figures differ by no more than the halves of both intervals that face each
other, joined as independent errors are (root of the sum of squares, in logarithms).
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import median

from autotune.load.report import Estimate
from autotune.outcome import Measured, TrialRecord
from benchmarks.stored import stored

METRICS = ("output_throughput", "ttft_p95_ms", "tpot_p50_ms", "e2e_p50_ms")


def apart(one: Estimate, other: Estimate) -> tuple[float, float]:
    """(Difference, joined half interval) of two figures, both as logarithms of ratios."""
    less, more = sorted((one, other), key=lambda item: item.value)
    joined = math.hypot(math.log(less.high / less.value), math.log(more.value / more.low))
    return math.log(more.value / less.value), joined


def pairs(records: Sequence[TrialRecord], metric: str) -> list[tuple[float, float]]:
    """`apart` of all pairs of windows of one configuration and level."""
    alike: dict[tuple[str, str], list[Estimate]] = defaultdict(list)
    for record in records:
        if isinstance(record.outcome, Measured):
            for level in record.outcome.load.levels:
                found = level.estimate(metric)
                if found is not None and found.low > 0:
                    alike[record.config.hash, str(level.level)].append(found)
    return [apart(one, other) for group in alike.values() for one, other in combinations(group, 2)]


def row(metric: str, found: Sequence[tuple[float, float]]) -> str:
    """A line of the table: metric, pairs, share that agrees, typical difference and joined half interval."""
    share = sum(difference <= joined for difference, joined in found) / len(found)
    differences, halves = zip(*found, strict=True)
    return f"| {metric} | {len(found)} | {share:.0%} | {median(differences):.1%} | {median(halves):.1%} |"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("databases", type=Path, nargs="+")
    studies = [stored(database)[1] for database in parser.parse_args().databases]
    print("| metric | pairs | agree | difference, median | joined half interval, median |\n|---|---|---|---|---|")
    for metric in METRICS:
        found = [pair for records in studies for pair in pairs(records, metric)]
        if found:
            print(row(metric, found))


if __name__ == "__main__":
    main()
