"""Prometheus text to numbers, whatever a dying server sends."""

from __future__ import annotations

import math
import re

_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{.*\})?\s+(?P<value>[-+\w.]+)(?:\s+-?\d+)?$")


def parse_metrics(text: str) -> dict[str, float]:
    """Samples summed over their labels. Buckets, timestamps, NaN, garbage and a half last line are left out."""
    if text and not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
    sums: dict[str, float] = {}
    for line in text.splitlines():
        found = _SAMPLE.match(line.strip())
        if found is None or found["name"].endswith(("_bucket", "_created")):
            continue
        try:
            value = float(found["value"])
        except ValueError:
            continue
        if math.isfinite(value):
            sums[found["name"]] = sums.get(found["name"], 0.0) + value
    return sums
