"""The table of benchmarks/client/compare.py, and what it says about the aims."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

FLOOR = "floor (C, epoll and recv)"
"""No client: what reading every chunk costs at least (floor.c)."""


@dataclass(frozen=True)
class Row:
    """One run of a client: microseconds of processor time a chunk, error of its TTFT in ms, processor seconds of its
    start-up, chunks a second that it took."""

    client: str
    load: str
    cpu_us: float
    error_p50: float
    error_p99: float
    start_cpu: float
    rate: float

    def __str__(self) -> str:
        return (
            f"{self.client:>25} {self.load:>5}: {self.cpu_us:6.1f} us/chunk, TTFT error p50 {self.error_p50:+.1f} "
            f"p99 {self.error_p99:+.1f} ms, {self.rate:.0f} chunks/s, start-up {self.start_cpu:.1f} s"
        )


class Medians:
    """Medians over the rounds."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.clients = list(dict.fromkeys(row.client for row in rows))

    def of(self, client: str, load: str | None, field: str) -> float | None:
        found = [getattr(row, field) for row in self.rows if row.client == client and load in (None, row.load)]
        return float(np.median(found)) if found else None


def aims(medians: Medians) -> list[str]:
    """What was to be reached, and whether it was, a line each; aims without both figures are left out."""

    def cpu(name: str) -> float | None:
        return medians.of(name, "256", "cpu_us")

    lines = []
    ours, rust, floor = cpu("ours"), cpu("vllm-rs"), cpu(FLOOR)
    if ours is not None:
        share = f", {ours / rust:.2f} of vllm-rs" if rust else ""
        met = ours <= 5.5 or (rust is not None and ours <= 0.9 * rust)
        lines.append(f"CPU at 256 streams at most 5.5 us or 0.9 of vllm-rs: {ours:.1f} us{share}: {_word(met)}")
        for name, times in (("vllm", 4.0), ("guidellm", 15.0)):
            if (other := cpu(name)) is not None:
                ratio = other / ours
                least = f" (the floor: {other / floor:.1f} times)" if floor else ""
                lines.append(
                    f"CPU at 256 streams {times:g} times less than {name}: {ratio:.1f} times{least}: "
                    f"{_word(ratio >= times)}"
                )
    error, theirs = (medians.of(name, "1024", "error_p50") for name in ("ours", "vllm-rs"))
    if error is not None and theirs is not None:
        met = abs(error) <= abs(theirs) / 5
        what = "median TTFT error at 1,024 streams at most a fifth of vllm-rs"
        lines.append(f"{what}: {error:+.1f} ms to {theirs:+.1f} ms: {_word(met)}")
    return lines


def _word(met: bool) -> str:
    return "reached" if met else "**not reached**"


def markdown(rows: Sequence[Row], loads: Sequence[str], versions: Mapping[str, str], busy: str) -> str:
    """The page: table, delivered rates, aims."""
    medians = Medians(rows)
    head = "".join(f" µs/chunk {load} | TTFT error p50 / p99 ms {load} | chunks/s {load} |" for load in loads)
    lines = [
        "# Load clients beside each other", "",
        "Made by `python benchmarks/client/compare.py`; README.md says what is measured. Medians over "
        f"{max(sum(row.client == 'ours' and row.load == load for row in rows) for load in loads)} rounds.",
        f"{os.cpu_count()} cores ({platform.machine()}), load average {busy}.", "",
        f"| client | version |{head} start-up CPU s |", f"|---|---|{'---|' * (3 * len(loads) + 1)}",
    ]  # fmt: skip
    for name in medians.clients:
        cells = []
        for load in loads:
            figures = [medians.of(name, load, key) for key in ("cpu_us", "error_p50", "error_p99", "rate")]
            if None in figures:
                cells += ["–", "–", "–"]
                continue
            cpu, p50, p99, rate = (float(value or 0.0) for value in figures)
            cells += [f"{cpu:.1f}", f"{p50:+.1f} / {p99:+.1f}", f"{rate:,.0f}"]
        start = medians.of(name, None, "start_cpu") or 0.0
        lines.append(f"| {name} | {versions.get(name, '')} | {' | '.join(cells)} | {start:.1f} |")
    lines += [
        "", "The server offers 3,200, 12,800, 25,600 and 41,000 chunks a second at 16, 64, 256 and 1,024 streams. A",
        "client that takes fewer is late: it finds several chunks in a read, and its processor time a chunk falls.", "",
    ]  # fmt: skip
    return "\n".join([*lines, *(f"* {line}" for line in aims(medians))]) + "\n"
