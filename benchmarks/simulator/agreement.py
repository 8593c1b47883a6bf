"""The simulator against what a real engine measured: every measured trial of a study's database, simulated again.

    python -m benchmarks.simulator.agreement docs/evidence/h200-glm-4-9b/second-run.db --model glm-4-9b --card h200

A closed loop of equal lengths only. The simulation sends five requests per stream and leaves the first out, so that
both sides speak of a loop that runs. What is compared: output throughput, TTFT p75 and p95, TPOT p50. The error is
simulated over measured, less one. A measured figure without a narrow interval is marked: its error says little. Where
the trials' folders lie beside the database, they are counted by today's definitions (`benchmarks.load.recount`).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.outcome import Measured, TrialRecord
from autotune.simulator.config import EngineSettings, resolve
from autotune.simulator.core import RequestTimes, SimulationResult, Workload, percentile, simulate
from benchmarks.load.recount import today

WAVES = 5
WIDE = 0.25
"""An interval of more than this share of its value on either side is wide."""


@dataclass(frozen=True)
class Row:
    """One figure of one trial at one level. Milliseconds or tokens per second; `wide`: see the module's head."""

    trial: int
    level: float
    metric: str
    measured: float
    simulated: float
    wide: bool

    @property
    def error(self) -> float:
        """Relative to what was measured."""
        return self.simulated / self.measured - 1


def steady(result: SimulationResult, concurrency: int) -> dict[str, float]:
    """The figures of all requests but the first wave's and of those that end after arrivals have dried up."""
    by_end = sorted(result.requests, key=lambda request: request.finished_s)
    inner: list[RequestTimes] = by_end[concurrency : len(by_end) - concurrency]
    seconds = inner[-1].finished_s - by_end[concurrency - 1].finished_s
    ttft = [request.ttft_s * 1e3 for request in inner]
    return {
        "output_throughput": sum(request.output_len for request in inner) / seconds,
        "ttft_p75_ms": percentile(ttft, 75),
        "ttft_p95_ms": percentile(ttft, 95),
        "tpot_p50_ms": percentile([request.tpot_s * 1e3 for request in inner], 50),
    }


def simulated(settings: EngineSettings, concurrency: int, prompt: int, output: int) -> dict[str, float]:
    """One closed loop in virtual time."""
    load = Workload.closed_loop(concurrency, WAVES * concurrency, prompt, output)
    return steady(simulate(settings, load), concurrency)


def rows(record: TrialRecord, model: str, card: str, prompt: int, output: int) -> Iterator[Row]:
    """What one measured trial gives; nothing of another outcome."""
    if not isinstance(record.outcome, Measured):
        return
    flags: Mapping[str, object] = {**dict(record.proposal.config.args), "model": model}
    settings = resolve({key: value for key, value in flags.items() if value is not None}, card, max(record.gpus, 1))
    for report in record.outcome.load.levels:
        if report.level.kind != "closed":
            continue
        metrics = dict(report.metrics)
        for name, value in simulated(settings, int(report.level.value), prompt, output).items():
            found = metrics.get(name)
            if found is None:
                continue
            wide = found.low is None or found.high is None or (found.high - found.low) / 2 > WIDE * found.value
            yield Row(record.number, report.level.value, name, found.value, value, wide)


def main() -> None:
    """Print a table and the median of the absolute errors by metric."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database", type=Path, nargs="+")
    parser.add_argument("--model", required=True, help="a shape the simulator knows")
    parser.add_argument("--card", default="h200")
    parser.add_argument("--tokens", type=int, nargs=2, default=(1024, 256), metavar=("IN", "OUT"))
    wanted = parser.parse_args()
    found: list[Row] = []
    print(
        "| run | trial | level | metric | measured | simulated | error | interval |\n|---|---|---|---|---|---|---|---|"
    )
    for database in wanted.database:
        for record in today(database):
            for row in rows(record, wanted.model, wanted.card, *wanted.tokens):
                found.append(row)
                print(
                    f"| {database.stem} | {row.trial} | {row.level:g} | {row.metric} | {row.measured:.0f} |"
                    f" {row.simulated:.0f} | {row.error:+.1%} | {'wide' if row.wide else ''} |"
                )
    for metric in dict.fromkeys(row.metric for row in found):
        errors = [abs(row.error) for row in found if row.metric == metric]
        print(f"{metric}: median {statistics.median(errors):.1%}, at most {max(errors):.1%}, {len(errors)} figures")


if __name__ == "__main__":
    main()
