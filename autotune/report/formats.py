"""Every format that a report can be written in, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from autotune.report.page import html_page
from autotune.report.values import ReportContent

Writer = Callable[[ReportContent, Path], None]


def _write_page(content: ReportContent, out: Path) -> None:
    out.write_text(html_page(content), encoding="utf-8")


FORMATS: dict[str, Writer] = {"html": _write_page}
