"""Prometheus text to numbers, whatever a dying server sends."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>[-+\w.]+)(?:\s+-?\d+)?$")
_ENGINE = re.compile(r'(?:^|,)engine="([^"]*)"')
KEPT = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "generation_tokens_total",
        "prompt_tokens_total")  # fmt: skip
"""Figures that are also kept for each engine where there are several: what tells whether they share the work."""


def parse_metrics(text: str) -> dict[str, float]:
    """Samples summed over their labels. Buckets, timestamps, NaN, garbage and a half last line are left out.

    Where a server speaks for several engines (data parallel), some figures are also there for each of them, as
    `vllm:generation_tokens_total{engine="1"}`.
    """
    if text and not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
    sums: dict[str, float] = {}
    engines: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        found = _SAMPLE.match(line.strip())
        if found is None or found["name"].endswith(("_bucket", "_created")):
            continue
        try:
            value = float(found["value"])
        except ValueError:
            continue
        if math.isfinite(value):
            _add(sums, found["name"], value)
            if (engine := _ENGINE.search(found["labels"] or "")) is not None:
                _add(engines.setdefault(engine[1], {}), found["name"], value)
    return sums | by_engine(engines) if len(engines) > 1 else sums


def by_engine(engines: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The kept figures of each engine, by name with a label `engine`."""
    return {
        f'{name}{{engine="{engine}"}}': value
        for engine, values in engines.items()
        for name, value in values.items()
        if name.removeprefix("vllm:") in KEPT
    }


def summed(readings: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Samples of several servers added up; what stands for one engine of one server is left out."""
    sums: dict[str, float] = {}
    for values in readings:
        for name, value in values.items():
            if "{" not in name:
                _add(sums, name, value)
    return sums


def _add(sums: dict[str, float], name: str, value: float) -> None:
    sums[name] = sums.get(name, 0.0) + value
