"""The load of a server that is running: length histograms, request rate and concurrency from its /metrics."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from autotune.errors import EnvironmentFault, SpecError
from autotune.load.control import control_session, root_of, unreachable
from autotune.load.report import Target

TIMEOUT = 20.0
INPUT, OUTPUT = "request_prompt_tokens", "request_generation_tokens"
_BUCKET = re.compile(r'^(?:vllm[:_])?(\w+)_bucket\{(?:.*,)?le="([^"]+)".*\}\s+([0-9.eE+-]+)')
_PLAIN = re.compile(r"^(?:vllm[:_])?(\w+)(?:\{.*\})?\s+([0-9.eE+-]+)$")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One reading: cumulative histograms by name as {upper edge: count}, and plain samples summed over labels."""

    histograms: Mapping[str, Mapping[float, float]]
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Bucket:
    """`count` requests had between `low` (exclusive) and `high` (inclusive) tokens."""

    low: float
    high: float
    count: float


@dataclass(frozen=True, slots=True)
class ObservedLoad:
    """What a server's users do.

    Attributes:
        input_tokens, output_tokens: length histograms.
        requests: how many requests they hold.
        rate: requests a second while it was watched, or None for a single reading.
        concurrency: mean of requests running and waiting.
    """

    input_tokens: tuple[Bucket, ...]
    output_tokens: tuple[Bucket, ...]
    requests: int
    rate: float | None
    concurrency: float


def read_snapshot(text: str) -> Snapshot:
    """Histograms and samples of the Prometheus text format, summed over engines and models."""
    histograms: dict[str, dict[float, float]] = {}
    values: dict[str, float] = {}
    for line in text.splitlines():
        if found := _BUCKET.match(line):
            edges = histograms.setdefault(found[1], {})
            edge = math.inf if found[2] == "+Inf" else float(found[2])
            edges[edge] = edges.get(edge, 0.0) + float(found[3])
        elif found := _PLAIN.match(line):
            values[found[1]] = values.get(found[1], 0.0) + float(found[2])
    return Snapshot(histograms, values)


def buckets_between(before: Mapping[float, float], after: Mapping[float, float]) -> tuple[Bucket, ...]:
    """Single buckets from two cumulative histograms (`before` empty: everything since the server started).

    What lies beyond the last edge is taken to reach up to twice that edge.
    """
    found: list[Bucket] = []
    low = below = 0.0
    for edge in sorted(after):
        total = after[edge] - before.get(edge, 0.0)
        if total > below:
            found.append(Bucket(low, edge if math.isfinite(edge) else 2 * low, total - below))
        low, below = edge, max(below, total)
    return tuple(found)


def observed_load(before: Snapshot | None, after: Snapshot, seconds: float) -> ObservedLoad:
    """The load between two readings (`before` None: since the server started).

    Raises:
        SpecError: no request has ended, or the server has no vLLM histograms.
    """
    known = before.histograms if before is not None else {}
    if INPUT not in after.histograms or OUTPUT not in after.histograms:
        raise SpecError(
            "the server's /metrics has no length histograms", key=f"{INPUT}_bucket", hint="vLLM has them by default"
        )
    inputs = buckets_between(known.get(INPUT, {}), after.histograms[INPUT])
    outputs = buckets_between(known.get(OUTPUT, {}), after.histograms[OUTPUT])
    requests = round(sum(bucket.count for bucket in outputs))
    if not inputs or not outputs:
        hint = "watch longer, or without --watch to take everything since it started"
        raise SpecError("no request has ended on this server", hint=hint)
    readings = [item for item in (before, after) if item is not None]
    busy = [
        item.values.get("num_requests_running", 0.0) + item.values.get("num_requests_waiting", 0.0) for item in readings
    ]
    return ObservedLoad(
        inputs, outputs, requests, requests / seconds if before is not None else None, sum(busy) / len(busy)
    )


async def _read(target: Target) -> Snapshot:
    route = root_of(target) + "/metrics"
    try:
        async with control_session(target, TIMEOUT) as session, session.get(route) as response:
            if response.status != 200:
                raise EnvironmentFault(f"{route} answers HTTP {response.status}", hint="is it a vLLM server?")
            return read_snapshot(await response.text())
    except aiohttp.InvalidURL:
        raise SpecError(f"{target.url!r} is no URL", hint="write http://127.0.0.1:8000") from None
    except (aiohttp.ClientError, TimeoutError) as error:
        raise unreachable(route, error) from None


async def observe(target: Target, seconds: float = 0.0) -> ObservedLoad:
    """Watch a server for so many seconds, or take everything since it started.

    Raises:
        EnvironmentFault: it cannot be reached.
        SpecError: it has no histograms or no requests.
    """
    before = None
    if seconds > 0:
        before = await _read(target)
        await asyncio.sleep(seconds)
    return observed_load(before, await _read(target), seconds)


def write_load(seen: ObservedLoad, file: Path) -> list[Path]:
    """Write a `load:` section for a study file, and the two histograms that it names, beside each other.

    Returns:
        The files.
    """
    files = [file]
    for name, buckets in (("input", seen.input_tokens), ("output", seen.output_tokens)):
        path = file.with_name(f"{file.stem}-{name}.json")
        body = {"buckets": [{"low": item.low, "high": item.high, "count": item.count} for item in buckets]}
        path.write_text(json.dumps(body, indent=1) + "\n")
        files.append(path)
    if seen.rate is not None:
        arrivals = f"  arrivals: poisson\n  levels: [{max(seen.rate, 0.01):.3g}]  # requests a second, as watched\n"
    else:
        level = max(1, round(seen.concurrency))
        arrivals = f"  arrivals: closed\n  levels: [{level}]  # requests in flight when it was read\n"
    file.write_text(
        f"# Lengths of {seen.requests} requests of a running server.\n"
        "load:\n"
        f"  input_tokens: {{kind: empirical, file: {files[1].name}}}\n"
        f"  output_tokens: {{kind: empirical, file: {files[2].name}}}\n"
        f"{arrivals}"
    )
    return files
