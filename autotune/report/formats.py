"""Every format that a report can be written in, by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from autotune.errors import EnvironmentFault
from autotune.replaced import replaced
from autotune.report.markdown import markdown
from autotune.report.page import html_page
from autotune.report.payload import exact
from autotune.report.picture import write_picture
from autotune.report.tables import write_csv, write_parquet
from autotune.report.values import ReportContent

Writer = Callable[[ReportContent, Path], None]


def _write_page(content: ReportContent, out: Path) -> None:
    out.write_text(html_page(content), encoding="utf-8")


def _write_markdown(content: ReportContent, out: Path) -> None:
    out.write_text(markdown(content), encoding="utf-8")


def _write_json(content: ReportContent, out: Path) -> None:
    out.write_text(json.dumps(exact(content), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


FORMATS: dict[str, Writer] = {
    "html": _write_page,
    "md": _write_markdown,
    "json": _write_json,
    "csv": write_csv,
    "parquet": write_parquet,
    "png": write_picture,
}


def write_report(content: ReportContent, form: str, out: Path) -> None:
    """Write a report; an existing file is replaced only once the new one is complete, a device or a pipe is written to.

    Raises:
        EnvironmentFault: the file cannot be written, or the format needs something that is not installed.
    """
    try:
        with replaced(out) as part:
            FORMATS[form](content, part)
    except OSError as error:
        raise EnvironmentFault(f"{out} cannot be written: {error.strerror}", hint="choose another --out") from error
