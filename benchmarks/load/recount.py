"""Judge a finished study again by today's definitions, from the request-level arrays that its trials left.

    python -m benchmarks.load.recount studies/NAME

The folder holds `study.db` and the trials' folders with their `level-N.npz`. Prints each level as it was recorded and
as it counts today, beside the throughput that follows from concurrency, answer length and mean latency alone (Little's
law), and what the confirmation would claim today. Nothing in the folder is written.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from autotune.load.metrics import Window, summarise, whole_waves
from autotune.load.report import LevelReport
from autotune.load.vllm_definitions import read_records
from autotune.outcome import Measured, TrialRecord
from autotune.search.confirm import analyse, rounds_of
from autotune.search.objectives import Objectives
from autotune.spec.study import StudySpec
from benchmarks.stored import stored


def recount(level: LevelReport, file: Path) -> LevelReport:
    """The level with its figures made anew."""
    records = read_records(file)
    # Whole waves end with the end of a request, which lies in no window that ends there: without a microsecond more a
    # window that was whole when it was recorded would lose its last wave.
    end = level.warmup_s + level.window_s + 1e-6
    window = Window(level.warmup_s, end, by_plan=level.level.kind != "closed")
    if not window.by_plan:
        window = whole_waves(records, window, round(level.level.value))
    figures = {**dict(level.metrics), **summarise(records, window)}
    return replace(level, metrics=tuple(figures.items()), window_s=window.seconds, warmup_s=window.start)


def judged_again(record: TrialRecord, folder: Path) -> TrialRecord:
    """The record with all its levels made anew."""
    outcome = record.outcome
    if not isinstance(outcome, Measured):
        return record
    levels = [
        recount(level, folder / f"trial-{record.number:04d}" / f"level-{number}.npz")
        for number, level in enumerate(outcome.load.levels)
    ]
    return replace(record, outcome=replace(outcome, load=replace(outcome.load, levels=tuple(levels))))


def today(database: Path) -> list[TrialRecord]:
    """The trials of a study, by today's definitions where their arrays lie beside the database."""
    folder = database.parent
    records = stored(database)[1]
    if not any(folder.glob("trial-*/level-0.npz")):
        return list(records)
    return [judged_again(record, folder) for record in records]


def table(before: Sequence[TrialRecord], after: Sequence[TrialRecord]) -> str:
    """Throughput and p95 TTFT of every level, recorded and recounted."""
    lines = ["| trial | level | recorded tok/s | whole waves, tok/s | Little's law, tok/s | TTFT p95, ms |"]
    lines.append("|---|---|---|---|---|---|")
    for old, new in zip(before, after, strict=True):
        if not isinstance(old.outcome, Measured) or not isinstance(new.outcome, Measured):
            continue
        for was, now in zip(old.outcome.load.levels, new.outcome.load.levels, strict=True):
            recorded, counted = was.estimate("output_throughput"), now.estimate("output_throughput")
            ttft, latency = now.estimate("ttft_p95_ms"), now.estimate("e2e_mean_ms")
            answers = now.estimate("request_throughput")
            if recorded is None or counted is None or ttft is None or latency is None or answers is None:
                continue
            little = now.level.value * counted.value / answers.value / latency.value * 1e3
            lines.append(
                f"| {old.number} {old.proposal.origin} | {now.level} | {recorded.value:.0f} [{recorded.low:.0f}, "
                f"{recorded.high:.0f}] | {counted.value:.0f} [{counted.low:.0f}, {counted.high:.0f}] | {little:.0f} | "
                f"{ttft.value:.0f} [{ttft.low:.0f}, {ttft.high:.0f}] |"
            )
    return "\n".join(lines)


def claim(records: Sequence[TrialRecord], spec: StudySpec) -> str:
    """What the confirmation says of each finalist."""
    measured = [record for record in records if isinstance(record.outcome, Measured)]
    rounds = rounds_of(measured)
    if not rounds:
        return "no confirmation"
    found = analyse(rounds, Objectives.of(spec), measured[0].config, margin=spec.confirm.margin)
    lines = [found.sentence]
    for arm in found.arms:
        lines.append(f"* {dict(arm.config.args)}: " + "; ".join(map(str, arm.ratios)))
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    spec, before = stored(folder / "study.db")
    after = [judged_again(record, folder) for record in before]
    print(table(before, after), claim(after, spec), sep="\n\n")


if __name__ == "__main__":
    main()
