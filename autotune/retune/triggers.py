"""What makes a pass tune again, cheap things first. All pure: values in, a finding with its sentence out."""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from autotune.retune.ledger import Bin, Canary, Pairs, Profile
from autotune.spec.retune import TriggerSpec

STUDY = "study."
STUDY_PARTS = ("engine", "space", "load", "objectives", "slos", "baseline")
"""Parts of the study file whose change is a reason to tune again; the fingerprint holds a hash of each."""
WATCHED = (
    "engine", "model", "model_config", "model_revision", "driver", "gpu", "gpus", "gpu_power_limit_watts", "cpu",
    *(f"{STUDY}{part}" for part in STUDY_PARTS),
)  # fmt: skip
"""Entries of the fingerprint whose change may move the best configuration."""
FLOOR = 1e-4
"""Smallest share of a class, so that one that is empty on one side stays finite."""
LEAST_SHARE = 0.02
"""Classes with less than this share of the profile are joined with the next one: their shares are chance."""
ROUNDS = 3
"""Measurements of a canary; its median counts."""
REFERENCES = 8
"""Canaries that the reference is made of, at most."""
REFERENCE_SHARE = 1.2
"""How much the limit is wider against a single canary; chosen by simulation, see `canary_limit`."""
MACHINE_SHARE = 0.5
"""Where the baseline lost more than this share of what the incumbent lost, the machine is at fault."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one trigger says.

    Attributes:
        name: `fingerprint`, `workload` or `canary`.
        fired: tune again.
        sentence: why, or why not.
        alert: something that tuning cannot repair.
        again: measure once more before it counts.
    """

    name: Literal["fingerprint", "workload", "canary"]
    fired: bool
    sentence: str
    alert: bool = False
    again: bool = False


def fingerprint_finding(before: Pairs, now: Pairs) -> Finding:
    """Compare what the configuration was tuned for with the present.

    An entry that is not known on one side is not a change: it was not read.
    """
    old, new = dict(before), dict(now)
    changed = [
        _changed(name, old[name], new[name])
        for name in WATCHED
        if name in old and name in new and old[name] != new[name]
    ]
    if changed:
        return Finding("fingerprint", True, "; ".join(changed))
    return Finding("fingerprint", False, "vLLM, model, driver, card and arguments are what they were")


def _changed(name: str, old: str, new: str) -> str:
    if name.startswith(STUDY):
        return f"`{name.removeprefix(STUDY)}` of the study file has changed"
    return f"{name} was {old} and is {new}"


def population_stability(expected: Sequence[Bin], actual: Sequence[Bin]) -> float:
    """Population stability index: sum over classes of (a - e) ln(a / e), with shares a and e.

    Below 0.1 nothing moved, above 0.25 much did (the usual reading in credit scoring, where it comes from). Classes are
    those of `expected`; what lies beyond its ends goes to its first and last class.
    """
    edges = _edges(expected)
    first, second = _shares(expected, edges), _shares(actual, edges)
    pairs = [(max(a, FLOOR), max(b, FLOOR)) for a, b in zip(first, second, strict=True)]
    return sum((b - a) * math.log(b / a) for a, b in pairs)


def _edges(bins: Sequence[Bin]) -> list[float]:
    """Upper edges of classes with a share worth comparing; the last one is open."""
    total = sum(one.count for one in bins)
    edges, share = [], 0.0
    for one in sorted(bins, key=lambda item: item.high):
        share += one.count / total if total else 0.0
        if share >= LEAST_SHARE:
            edges.append(one.high)
            share = 0.0
    return edges[:-1]


def _shares(bins: Sequence[Bin], edges: Sequence[float]) -> list[float]:
    """Shares of the classes; a bin that crosses an edge is divided as if its lengths were spread evenly."""
    counts = [0.0] * (len(edges) + 1)
    for one in bins:
        cuts = [one.low, *(edge for edge in edges if one.low < edge < one.high), one.high]
        for low, high in itertools.pairwise(cuts):
            part = (high - low) / (one.high - one.low) if one.high > one.low else 1.0
            counts[bisect.bisect_left(edges, high)] += one.count * part
    total = sum(counts)
    return [count / total if total else 0.0 for count in counts]


def workload_finding(tuned: Profile | None, seen: Profile | None, spec: TriggerSpec, *, rated: bool) -> Finding:
    """Compare the workload with the profile that was tuned for.

    Args:
        tuned: the profile, None where none was ever seen.
        seen: the present one, None where the service was not asked or did not answer.
        spec: limits.
        rated: the study's load is a rate, so that the rate counts.
    """
    if seen is None:
        return Finding("workload", False, "the service's workload was not read")
    if seen.requests < spec.requests:
        return Finding("workload", False, f"{seen.requests} requests are too few to judge ({spec.requests} needed)")
    if tuned is None:
        return Finding("workload", False, f"{seen.requests} requests are the profile for later passes")
    moved = []
    for name, before, now in (
        ("prompt lengths", tuned.inputs, seen.inputs),
        ("answer lengths", tuned.outputs, seen.outputs),
    ):
        index = population_stability(before, now)
        if index > spec.psi:
            moved.append(
                f"{name} have moved (stability index {index:.2f}, limit {spec.psi:g}; mean {mean_length(before):.0f} "
                f"before, {mean_length(now):.0f} now)"
            )
    if rated and tuned.rate and seen.rate is not None and abs(seen.rate / tuned.rate - 1) > spec.rate_change:
        moved.append(f"{tuned.rate:.3g} requests a second became {seen.rate:.3g}")
    hits = (tuned.prefix_hits, seen.prefix_hits)
    if hits[0] is not None and hits[1] is not None and abs(hits[1] - hits[0]) > spec.prefix_change:
        moved.append(f"the prefix cache's hit rate went from {hits[0]:.0%} to {hits[1]:.0%}")
    if moved:
        return Finding("workload", True, "; ".join(moved))
    return Finding("workload", False, f"the workload of {seen.requests} requests is the one that was tuned for")


def mean_length(bins: Sequence[Bin]) -> float:
    """Mean of a histogram, with each bin at its middle."""
    total = sum(one.count for one in bins)
    return sum(one.count * (one.low + one.high) / 2 for one in bins) / total if total else 0.0


def canary_median(values: Sequence[float]) -> float | None:
    """The median of a canary's measurements, None where there are none."""
    return statistics.median(values) if values else None


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a canary stands.

    Attributes:
        loss, baseline_loss: relative to the reference; the baseline's is None where it was not measured.
        low_in_a_row: how many canaries up to this one were lower than the limit.
        limit: the relative loss that counts.
        known: canaries that the reference is made of.
    """

    loss: float
    baseline_loss: float | None
    low_in_a_row: int
    limit: float
    known: int


def canary_limit(drop: float, known: int) -> float:
    """The loss that counts as low against a reference of `known` canaries.

    The reference scatters as well, and by the same amount in both canaries that are compared with it; the limit allows
    for that. With single runs that scatter by 3.8 % a weekly canary then has one false alarm in about 320 passes,
    near what `false_alarm` says of an exact reference; with the plain limit it would have one in 100.
    """
    return drop * (1 + REFERENCE_SHARE / known)


def canary_finding(readings: Sequence[Canary], drop: float) -> Finding:
    """Judge the canaries since the last tuning.

    The rule: a median of three more than `drop` low, twice in a row. The reference is the mean of the first readings
    that were not low, at most eight, so that one unlucky reading does not stand for a year; `canary_limit` widens the
    limit while there are few.
    """
    latest = readings[-1]
    if latest.incumbent is None:
        return Finding("canary", True, f"the incumbent cannot serve any more: {latest.problem}")
    now = standing(readings, drop)
    if now is None:
        return Finding("canary", False, "the first canary since the last tuning; later ones are compared with it")
    against = f"limit -{now.limit:.1%} against the mean of {now.known}"
    if now.low_in_a_row == 0:
        return Finding("canary", False, f"the canary is {-now.loss:+.1%} against its reference ({against})")
    if now.low_in_a_row == 1:
        return Finding("canary", False, f"the canary is {now.loss:.1%} low ({against}); one may be chance", again=True)
    text = f"the canary is {now.loss:.1%} low twice in a row ({against})"
    if now.baseline_loss is None:
        return Finding("canary", True, text)
    if now.baseline_loss > MACHINE_SHARE * now.loss:
        text += f", and the baseline lost {now.baseline_loss:.1%} too: the machine is slower, not the configuration; "
        return Finding("canary", False, text + "look at clocks, power and heat", alert=True)
    return Finding("canary", True, f"{text}, and the baseline is not ({-now.baseline_loss:+.1%})")


def standing(readings: Sequence[Canary], drop: float) -> Standing | None:
    """Where the last of the readings stands against those before it; None where it is the first one."""
    kept: list[Canary] = []
    found, low = None, 0
    for one in readings:
        if one.incumbent is None:
            continue
        if kept:
            loss = 1 - one.incumbent / statistics.fmean(item.incumbent for item in kept if item.incumbent)
            baselines = [item.baseline for item in kept if item.baseline]
            baseline_loss = 1 - one.baseline / statistics.fmean(baselines) if one.baseline and baselines else None
            limit = canary_limit(drop, len(kept))
            low = low + 1 if loss > limit else 0
            found = Standing(loss, baseline_loss, low, limit, len(kept))
        if not low and len(kept) < REFERENCES:
            kept.append(one)
    return found


def false_alarm(sigma: float, drop: float) -> float:
    """Chance that two medians of three in a row are more than `drop` low although nothing changed.

    Args:
        sigma: relative standard deviation of one measurement; the reference is taken to be exact.
        drop: relative limit.
    """
    single = statistics.NormalDist(0, sigma).cdf(-drop)
    median = 3 * single**2 - 2 * single**3
    return median**2
