"""Lengths of prompts and answers in tokens, by the law that a study names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from autotune.errors import SpecError
from autotune.load.records import Floats, Ints
from autotune.spec.study import LengthSpec


def draw_lengths(spec: int | LengthSpec, generator: np.random.Generator, size: int) -> Ints:
    """Token lengths by the law of `spec`, rounded and cut to [low, high].

    Raises:
        SpecError: an `empirical` file is missing or holds no lengths.
    """
    if isinstance(spec, int):
        return np.full(size, spec, dtype=np.int64)
    low, high = spec.low, spec.high if spec.high is not None else 10_000_000
    if spec.kind == "fixed":
        values = np.full(size, spec.mean)
    elif spec.kind == "normal":
        values = generator.normal(spec.mean, spec.stdev, size)
    elif spec.kind == "lognormal":
        # mean and stdev are those of the lengths themselves, not of their logarithms
        sigma2 = np.log1p((spec.stdev / spec.mean) ** 2)
        values = generator.lognormal(np.log(spec.mean) - sigma2 / 2, np.sqrt(sigma2), size)
    elif spec.kind == "uniform":
        top = spec.high if spec.high is not None else max(low, round(2 * spec.mean - low))
        values = generator.integers(low, top + 1, size).astype(np.float64)
    else:
        values = draw_empirical(spec.file, generator, size)
    lengths: Ints = np.clip(np.rint(values), low, high).astype(np.int64)
    return lengths


def draw_empirical(file: str | None, generator: np.random.Generator, size: int) -> Floats:
    """Lengths drawn from a file: one length a line, or a histogram written by `autotune load from-metrics`."""
    if file is None:
        raise SpecError("an empirical length needs a file", key="load.*_tokens.file", hint="file: lengths.txt")
    try:
        text = Path(file).read_text()
    except OSError as error:
        raise SpecError(f"cannot read the lengths: {error.strerror}", file=file) from None
    if text.lstrip().startswith("{"):
        return _draw_histogram(file, text, generator, size)
    numbers: list[float] = []
    for line, entry in enumerate(text.splitlines(), 1):
        if entry.strip() and not entry.lstrip().startswith("#"):
            try:
                numbers.append(float(entry.split(",")[0]))
            except ValueError:
                raise SpecError(f"{entry!r} is no length", file=file, line=line, hint="one number a line") from None
    if not numbers:
        raise SpecError("the file holds no lengths", file=file, hint="one number a line")
    return generator.choice(np.array(numbers), size)


def _draw_histogram(file: str, text: str, generator: np.random.Generator, size: int) -> Floats:
    try:
        buckets = json.loads(text)["buckets"]
        edges = np.array([[float(item["low"]), float(item["high"])] for item in buckets])
        weights = np.array([float(item["count"]) for item in buckets])
    except (ValueError, KeyError, TypeError):
        raise SpecError(
            "the histogram cannot be read", file=file, hint='{"buckets": [{"low": 0, "high": 10, "count": 5}]}'
        ) from None
    if not len(weights) or weights.sum() <= 0:
        raise SpecError("the histogram is empty", file=file)
    chosen = generator.choice(len(weights), size, p=weights / weights.sum())
    low, high = edges[chosen, 0], edges[chosen, 1]
    lengths: Floats = np.maximum(1.0, np.ceil(low + (high - low) * (1.0 - generator.random(size))))
    return lengths
