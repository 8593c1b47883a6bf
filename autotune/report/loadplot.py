"""What a load level looked like over time, as a picture: tokens per second, and the TTFT of every request."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
WIDTH, PANEL, LEFT, GAP, TOP = 760.0, 170.0, 62.0, 56.0, 60.0
MOST_DOTS = 1500
"""Requests that are drawn; of more, every n-th."""


@dataclass(frozen=True)
class Samples:
    """Request-level times of a level in seconds since its load began, warm-up included."""

    chunks: Floats
    tokens: Floats
    begun: Floats
    ttft_ms: Floats


def read_samples(file: Path) -> Samples | None:
    """The arrays that a load level left behind (`level-N.npz`), or None where they are gone or damaged."""
    try:
        with np.load(file, allow_pickle=False) as arrays:
            fields = [str(name) for name in arrays["fields"]]
            rows = np.asarray(arrays["rows"], dtype=np.float64)
            chunks = np.asarray(arrays["chunks"], dtype=np.float64)
            counts = np.diff(np.asarray(arrays["offsets"], dtype=np.float64)).astype(np.int64)
    except (OSError, EOFError, ValueError, KeyError, TypeError, BadZipFile):
        return None
    column = {name: rows[:, index] for index, name in enumerate(fields) if index < rows.shape[1]}
    if not {"sent", "due", "first", "completion_tokens"} <= column.keys() or counts.sum() != len(chunks):
        return None
    usage = np.where(np.isnan(column["completion_tokens"]), counts, column["completion_tokens"])
    reference = np.where(np.isnan(column["due"]), column["sent"], column["due"])
    return Samples(
        chunks=chunks,
        tokens=np.repeat(usage / np.maximum(counts, 1), counts),
        begun=reference,
        ttft_ms=(column["first"] - reference) * 1e3,
    )


def load_plot(samples: Samples, title: str) -> str:
    """An SVG picture with its own white ground, for viewers that know nothing of ours."""
    end = float(np.nanmax(samples.chunks)) if len(samples.chunks) else 1.0
    end = max(end, 1e-3)
    bins = int(np.clip(end, 20, 120))
    sums, edges = np.histogram(samples.chunks, bins=bins, range=(0.0, end), weights=samples.tokens)
    rate = sums / (end / bins)
    body = [f'<text x="{LEFT}" y="20" class="t">{escape(title)}</text>']
    body += _area(edges, rate, end)
    body += _dots(samples, end)
    height = TOP + 2 * PANEL + GAP + 40
    style = (
        "text{font:12px system-ui,sans-serif;fill:#646c77}.t{font-size:14px;font-weight:600;fill:#1d2127}"
        ".n{fill:#1d2127}.g{stroke:#eef0f2}.r{fill:#2459c4;opacity:.25;stroke:#2459c4}.d{fill:#2459c4;opacity:.55}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" width="{WIDTH:g}">'
        f'<style>{style}</style><rect width="100%" height="100%" fill="#fff"/>{"".join(body)}</svg>'
    )


def _area(edges: Floats, rate: Floats, end: float) -> Iterable[str]:
    high = max(float(rate.max()), 1.0) * 1.08
    yield from _panel(TOP, high, end, "Tokens a second")
    points = " ".join(
        f"{_x((edges[i] + edges[i + 1]) / 2, end):.1f},{_y(rate[i], high, TOP):.1f}" for i in range(len(rate))
    )
    floor = TOP + PANEL
    yield f'<polygon class="r" points="{_x(0, end):.1f},{floor} {points} {_x(end, end):.1f},{floor}"/>'


def _dots(samples: Samples, end: float) -> Iterable[str]:
    seen = ~np.isnan(samples.ttft_ms)
    times, values = samples.begun[seen], samples.ttft_ms[seen]
    top = TOP + PANEL + GAP
    high = max(float(values.max()), 1.0) * 1.08 if len(values) else 1.0
    yield from _panel(top, high, end, "TTFT of each request (ms)")
    step = max(1, len(values) // MOST_DOTS)
    for time, value in zip(times[::step], values[::step], strict=True):
        yield f'<circle class="d" r="2" cx="{_x(time, end):.1f}" cy="{_y(value, high, top):.1f}"/>'
    yield (
        f'<text class="n" x="{WIDTH - 12}" y="{top + PANEL + 34}" text-anchor="end">Seconds since the load began</text>'
    )


def _panel(top: float, high: float, end: float, title: str) -> Iterable[str]:
    yield f'<text class="n" x="{LEFT}" y="{top - 8}">{title}</text>'
    for tick in _ticks(high, 4):
        y = _y(tick, high, top)
        yield f'<line class="g" x1="{LEFT}" x2="{WIDTH - 12}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:,g}</text>'
    for tick in _ticks(end, 8):
        yield f'<text x="{_x(tick, end):.1f}" y="{top + PANEL + 17}" text-anchor="middle">{tick:g}</text>'


def _ticks(high: float, count: int) -> list[float]:
    """Round numbers from 0 to `high`, about `count` of them."""
    raw = high / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= raw)
    return [index * step for index in range(int(high / step) + 1)]


def _x(time: float, end: float) -> float:
    return LEFT + (WIDTH - 12 - LEFT) * float(time) / end


def _y(value: float, high: float, top: float) -> float:
    return top + PANEL * (1 - float(value) / high)
