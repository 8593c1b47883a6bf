"""Every trial as a row, for spreadsheets and notebooks."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from autotune.errors import EnvironmentFault
from autotune.load.report import Estimate
from autotune.report.values import ReportContent, TrialView

Cell = str | float | int | bool | None


def trial_rows(content: ReportContent) -> list[dict[str, Cell]]:
    """One row a trial: what it was, its objectives with intervals, every metric of every level, every setting.

    Units: seconds for times, milliseconds for keys ending in `_ms`, tokens or requests per second for throughputs.
    """
    return [_row(trial, content) for trial in content.trials]


def _row(trial: TrialView, content: ReportContent) -> dict[str, Cell]:
    row: dict[str, Cell] = {
        "trial": trial.number,
        "origin": trial.origin,
        "standing": str(trial.standing),
        "outcome": trial.outcome,
        "reason": trial.reason,
        "repeat": trial.repeat,
        "begin_s": trial.begin_s,
        "seconds": trial.seconds,
        "gpus": trial.gpus,
        "config": trial.config,
        "simulated": content.simulated,
    }
    for column, estimate in zip(content.columns, trial.objectives, strict=False):
        row |= _cells(column.label, estimate)
    row |= {f"stage.{name}": seconds for name, seconds in trial.stages}
    for level in trial.levels:
        for key, estimate in level.figures:
            row |= _cells(f"{level.name}.{key}", estimate)
        row |= {f"{level.name}.engine.{key}": value for key, value in level.engine}
    row |= {f"arg.{name}": value for name, value in trial.args}
    row |= {f"env.{name}": value for name, value in trial.env}
    return row


def _cells(name: str, estimate: Estimate) -> dict[str, Cell]:
    return {name: estimate.value, f"{name}.low": estimate.low, f"{name}.high": estimate.high}


def trial_frame(content: ReportContent) -> pd.DataFrame:
    """The rows as a frame; texts that a spreadsheet would take for formulas are kept as they are."""
    return pd.DataFrame(trial_rows(content))


def write_csv(content: ReportContent, out: Path) -> None:
    """Write comma separated values in UTF-8. Texts that begin like a formula get an apostrophe in front.

    A cell that begins with `=`, `+`, `-` or `@` is run by spreadsheets; reasons come from logs.
    """
    frame = trial_frame(content)
    texts = frame.select_dtypes(include=["object", "string"]).columns
    frame[texts] = frame[texts].map(_tame)
    frame.to_csv(out, index=False)


def _tame(cell: Cell) -> Cell:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


def write_parquet(content: ReportContent, out: Path) -> None:
    """Write a Parquet file.

    Raises:
        EnvironmentFault: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as parquet
    except ImportError:
        raise EnvironmentFault(
            "format parquet needs pyarrow, which is not installed",
            hint="install it (pip install pyarrow), or use --format csv or --format json",
        ) from None
    parquet.write_table(pa.Table.from_pandas(trial_frame(content), preserve_index=False), out)
