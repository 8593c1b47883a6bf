"""What the users of the running service do, from its /metrics or from a Prometheus server."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import aiohttp
import numpy as np

from autotune.errors import AutotuneError, EnvironmentFault, SpecError
from autotune.load.from_metrics import Bucket, ObservedLoad, Snapshot, observed_load, read_snapshot
from autotune.load.lengths import draw_lengths
from autotune.load.records import Ints
from autotune.retune.ledger import Bin, Profile, Reading
from autotune.spec.retune import TriggerSpec
from autotune.spec.study import LengthSpec, LoadSpec

TIMEOUT_S = 20.0
HISTOGRAMS = ("request_prompt_tokens", "request_generation_tokens")
STRANGE = (ValueError, KeyError, TypeError, AttributeError)
"""What reading an answer raises that is not what the protocol says."""
DRAWN = 10_000
"""Lengths that stand for a law: enough that their scatter is far below a stability index that counts."""
CLASSES = 20
HITS, QUERIES = "prefix_cache_hits_total", "prefix_cache_queries_total"


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of the service's users.

    Attributes:
        profile: None where nothing could be read.
        note: why.
        reading: its counters now, to go on from at the next pass; None where Prometheus keeps them.
    """

    profile: Profile | None
    note: str = ""
    reading: Reading | None = None


async def observe_profile(
    spec: TriggerSpec, environ: Mapping[str, str], before: Reading | None, now: float
) -> Seen:  # fmt: skip
    """The present workload, or None and why it could not be read: a service that is down starts no tuning.

    Args:
        spec: where to ask.
        environ: where the API key comes from.
        before: the counters at the last pass. What has happened since is taken, days and nights, and not what happens
            at the hour of a pass; where there is none, or the service was started again, it is watched for a while.
        now: Unix seconds.
    """
    if spec.prometheus_url is None and spec.metrics_url is None:
        return Seen(None)
    try:
        if spec.prometheus_url is not None:
            snapshot = await _from_prometheus(spec.prometheus_url, spec.selector, spec.watched)
            return Seen(_profile(observed_load(None, snapshot, 0.0), None, snapshot, spec.watched))
        return await _from_service(spec, _headers(spec, environ), before, now)
    except (AutotuneError, aiohttp.ClientError, TimeoutError, *STRANGE) as error:
        problem = str(error).splitlines()[0] if str(error) else type(error).__name__
        return Seen(None, f"the service's workload cannot be read: {problem}")


async def _from_service(spec: TriggerSpec, headers: Mapping[str, str], before: Reading | None, now: float) -> Seen:
    route = _root(spec.metrics_url or "") + "/metrics"
    after = read_snapshot(await _get(route, {}, headers))
    if before is not None and now - before.at >= spec.watched and (old := _since(before, after)) is not None:
        seconds = now - before.at
        profile = _between(old, after, seconds)
        # Too few to judge: the next pass takes them as well.
        return Seen(profile, reading=_reading(after, now) if profile.requests >= spec.requests else None)
    first = after
    await asyncio.sleep(spec.watched)
    after = read_snapshot(await _get(route, {}, headers))
    reading = _reading(after, now + spec.watched)
    try:
        return Seen(_between(first, after, spec.watched), reading=reading)
    except SpecError as error:  # nothing has ended meanwhile; from now on it is counted
        return Seen(None, f"the service's workload cannot be read: {str(error).splitlines()[0]}", reading)


def _between(before: Snapshot, after: Snapshot, seconds: float) -> Profile:
    return _profile(observed_load(before, after, seconds), before, after, seconds)


def _reading(seen: Snapshot, at: float) -> Reading:
    edges = {name: sorted(seen.histograms.get(name, {}).items()) for name in HISTOGRAMS}
    histograms = tuple((name, tuple((repr(edge), count) for edge, count in rows)) for name, rows in edges.items())
    return Reading(at, histograms, tuple((name, seen.values.get(name, 0.0)) for name in (HITS, QUERIES)))


def _since(before: Reading, after: Snapshot) -> Snapshot | None:
    """The counters at the last pass; None where the service was started again since, or has other classes now."""
    histograms = {name: {float(edge): count for edge, count in rows} for name, rows in before.histograms}
    old = Snapshot(histograms, dict(before.counters))
    for name, edges in old.histograms.items():
        now = after.histograms.get(name, {})
        if not edges or now.keys() != edges.keys() or any(now[edge] < count for edge, count in edges.items()):
            return None
    return old


async def service_version(spec: TriggerSpec, environ: Mapping[str, str]) -> str:
    """vLLM's version as the running service names it; empty where it is not asked or does not answer."""
    if spec.metrics_url is None:
        return ""
    try:
        text = await _get(_root(spec.metrics_url) + "/version", {}, _headers(spec, environ))
        return str(json.loads(text)["version"]).partition("+")[0]
    except (AutotuneError, aiohttp.ClientError, TimeoutError, *STRANGE):
        return ""


def _root(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")


def _headers(spec: TriggerSpec, environ: Mapping[str, str]) -> dict[str, str]:
    key = environ.get(spec.api_key_env, "")
    return {"Authorization": f"Bearer {key}"} if key else {}


async def _get(url: str, query: Mapping[str, str], headers: Mapping[str, str]) -> str:
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(url, params=query, headers=headers) as answer,
    ):
        if answer.status != 200:
            raise EnvironmentFault(f"{url} answers HTTP {answer.status}")
        return await answer.text()


async def _from_prometheus(url: str, selector: str, seconds: float) -> Snapshot:
    """The increase of vLLM's histograms and counters over the last `seconds`, summed over all servers selected."""
    span = f"[{max(1, round(seconds))}s]"
    histograms: dict[str, Mapping[float, float]] = {}
    for name in HISTOGRAMS:
        rows = await _query(url, f"sum by (le) (increase(vllm:{name}_bucket{{{selector}}}{span}))")
        histograms[name] = {math.inf if le == "+Inf" else float(le): value for le, value in rows.items()}
    values = {}
    for name in (HITS, QUERIES):
        found = await _query(url, f"sum(increase(vllm:{name}{{{selector}}}{span}))")
        values[name] = sum(found.values())
    return Snapshot({name: edges for name, edges in histograms.items() if edges}, values)


async def _query(url: str, expression: str) -> dict[str, float]:
    """Values of an instant query by their `le` label."""
    body = json.loads(await _get(url.rstrip("/") + "/api/v1/query", {"query": expression}, {}))
    if body.get("status") != "success":
        raise EnvironmentFault(f"Prometheus at {url} answers {body.get('error', 'no result')}")
    rows = body["data"]["result"]
    return {row["metric"].get("le", ""): value for row in rows if math.isfinite(value := float(row["value"][1]))}


def _profile(seen: ObservedLoad, before: Snapshot | None, after: Snapshot, seconds: float) -> Profile:
    old = before.values if before is not None else {}
    hits, queries = (after.values.get(name, 0.0) - old.get(name, 0.0) for name in (HITS, QUERIES))
    return Profile(
        inputs=_bins(seen.input_tokens),
        outputs=_bins(seen.output_tokens),
        requests=seen.requests,
        rate=seen.requests / seconds if seconds > 0 else None,
        prefix_hits=hits / queries if queries > 0 else None,
    )


def _bins(buckets: tuple[Bucket, ...]) -> tuple[Bin, ...]:
    return tuple(Bin(item.low, item.high, item.count) for item in buckets)


def profile_of(load: LoadSpec) -> Profile | None:
    """The lengths that a study was tuned for, where they are those of users; None where the study made them up.

    A law of the study's own (256 tokens, say) is no statement about what users do; the first profile that is seen then
    stands for what they did when it was tuned.

    Raises:
        SpecError: a file of lengths is missing or holds none.
    """
    inputs, outputs = load.input_tokens, load.output_tokens
    if not (isinstance(inputs, LengthSpec) and isinstance(outputs, LengthSpec)):
        return None
    if (inputs.kind, outputs.kind) != ("empirical", "empirical"):
        return None
    draws = np.random.default_rng(load.seed)
    first, second = (_histogram(draw_lengths(law, draws, DRAWN)) for law in (inputs, outputs))
    return Profile(first, second, DRAWN)


def _histogram(lengths: Ints) -> tuple[Bin, ...]:
    """Classes of about the same share; a class holds its upper edge."""
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, CLASSES + 1), method="nearest"))
    edges = np.insert(edges, 0, edges[0] - 1)
    counts, _ = np.histogram(lengths, edges + 0.5)
    rows = zip(edges[:-1], edges[1:], counts, strict=True)
    return tuple(Bin(float(low), float(high), float(count)) for low, high, count in rows)


def histogram_json(bins: tuple[Bin, ...]) -> str:
    """The histogram file that a study's `file:` of an empirical length names."""
    return json.dumps({"buckets": [asdict(one) for one in bins]}, indent=1) + "\n"
