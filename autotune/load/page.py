"""A bench report as one HTML file that needs nothing else: the curve as SVG, and the table."""

from __future__ import annotations

import math
from html import escape

from autotune.load.bench import BenchReport
from autotune.load.metrics import needed_requests
from autotune.load.report import LevelReport

WIDTH, HEIGHT, MARGIN = 760, 420, 64
COLUMNS = (
    ("output_throughput", "output tok/s"),
    ("request_throughput", "req/s"),
    ("goodput", "goodput req/s"),
    ("ttft_p50_ms", "TTFT p50 ms"),
    ("ttft_p95_ms", "TTFT p95 ms"),
    ("tpot_p50_ms", "TPOT p50 ms"),
    ("itl_p95_ms", "ITL p95 ms"),
    ("e2e_p95_ms", "E2E p95 ms"),
    ("error_share", "errors"),
)
"""What a table of levels shows: metric keys and titles."""

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:64rem;padding:0 1rem;color:#1c2430;background:#fff}
table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .7rem;text-align:right;border-bottom:1px solid #d5dbe3}
th{font-weight:600} .bad{color:#b3261e} svg{max-width:100%;height:auto} .note{color:#5b6776}
@media(prefers-color-scheme:dark){body{color:#e3e8ef;background:#14181f}th,td{border-color:#333c4a}.bad{color:#ff8a80}
.note{color:#9aa7b8}}
"""


def cell(report: LevelReport, key: str) -> str:
    """A figure with the half-width of its interval, or a dash."""
    found = report.estimate(key)
    if found is None:
        return "–"
    digits = 3 if found.value < 1 else 1 if found.value < 100 else 0
    half = (found.high - found.low) / 2
    return f"{found.value:.{digits}f} ±{half:.{digits}f}" if half > 0 else f"{found.value:.{digits}f}"


def remarks(report: LevelReport) -> str:
    """Why a level cannot be believed or was stopped, and its notes; empty where there is nothing to say."""
    doubts = [f"invalid: {reason}" for reason in report.invalid]
    needed = needed_requests(95)
    few = f"p95 needs {needed} requests, the window had {report.requests}: a longer --duration, or --requests {needed}"
    missing = [few] if report.requests < needed and not (doubts or report.stopped) else []
    return "; ".join((*doubts, *([report.stopped] if report.stopped else []), *report.notes, *missing))


def _points(report: BenchReport) -> list[tuple[LevelReport, float, float]]:
    points = []
    for level in report.levels:
        rate = level.estimate("output_throughput")
        wait = level.estimate("ttft_p95_ms") or level.estimate("ttft_mean_ms")
        if rate is not None and wait is not None:
            points.append((level, wait.value, rate.value))
    return points


def _curve(report: BenchReport) -> str:
    points = _points(report)
    if len(points) < 2:
        return ""
    low, high = min(p[1] for p in points), max(p[1] for p in points)
    top = max(p[2] for p in points) * 1.08
    span = math.log(high / low) if high > low > 0 else 1.0

    def x(wait: float) -> float:
        return MARGIN + (WIDTH - 2 * MARGIN) * (math.log(wait / low) / span if low > 0 else 0.0)

    def y(rate: float) -> float:
        return HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * rate / top

    path = " ".join(f"{x(wait):.1f},{y(rate):.1f}" for _, wait, rate in points)
    marks = []
    for level, wait, rate in points:
        knee = report.knee is not None and level.level == report.knee.level
        label = f"{level.level} knee" if knee else str(level.level)
        radius, colour = (7, "#d9822b") if knee else (4, "#2f6fdb")
        marks.append(
            f'<circle cx="{x(wait):.1f}" cy="{y(rate):.1f}" r="{radius}" fill="{colour}">'
            f"<title>{escape(label)}: {rate:.1f} tok/s, {wait:.1f} ms</title></circle>"
            f'<text x="{x(wait) + 8:.1f}" y="{y(rate) + 16:.1f}" font-size="12" fill="currentColor">'
            f"{escape(label)}</text>"
        )
    axis = (
        f'<line x1="{MARGIN}" y1="{HEIGHT - MARGIN}" x2="{WIDTH - MARGIN}" y2="{HEIGHT - MARGIN}" stroke="#8894a5"/>'
        f'<line x1="{MARGIN}" y1="{MARGIN}" x2="{MARGIN}" y2="{HEIGHT - MARGIN}" stroke="#8894a5"/>'
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 16}" text-anchor="middle" font-size="13" fill="currentColor">'
        f"p95 TTFT in ms (log), {low:.0f} to {high:.0f}</text>"
        f'<text x="{MARGIN}" y="{MARGIN - 20}" font-size="13" fill="currentColor">'
        f"output tok/s, up to {top / 1.08:.0f}</text>"
    )
    line = f'<polyline points="{path}" fill="none" stroke="#2f6fdb" stroke-width="2"/>'
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="throughput against p95 TTFT">'
        f"{axis}{line}{''.join(marks)}</svg>"
    )


def headline(report: BenchReport) -> list[str]:
    """Knee and capacity in words."""
    lines = []
    if report.knee is not None:
        more = "" if report.knee.saturated else " (the ramp did not reach saturation; the knee may lie higher)"
        lines.append(f"Saturation knee at {report.knee.level}{more}.")
    if report.slos:
        limits = ", ".join(f"{item.metric} p{item.percentile:g} ≤ {item.limit * 1e3:g} ms" for item in report.slos)
        if report.capacity is not None:
            lines.append(f"Highest measured level that holds {limits}: {report.capacity}.")
    return lines


def render_html(report: BenchReport) -> str:
    """The whole page."""
    head = "".join(f"<th>{escape(title)}</th>" for _, title in COLUMNS)
    rows = []
    for level in report.levels:
        cells = "".join(f"<td>{cell(level, key)}</td>" for key, _ in COLUMNS)
        text = remarks(level)
        remark = f'<td class="bad">{escape(text)}</td>' if text else "<td></td>"
        rows.append(f"<tr><th>{escape(str(level.level))}</th>{cells}{remark}</tr>")
    words = "".join(f"<p>{escape(line)}</p>" for line in headline(report))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>autotune bench: {escape(report.model)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
        f"<h1>{escape(report.model)}</h1><p class=note>{escape(report.url)}</p>{words}{_curve(report)}"
        f"<table><tr><th>load</th>{head}<th></th></tr>{''.join(rows)}</table>"
        f'<p class="note">± is half of the 95 % interval. Definitions: docs/metrics.md.</p></html>\n'
    )
