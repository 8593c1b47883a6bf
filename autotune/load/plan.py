"""The plan of a load: which lengths at which times. It is drawn from the study's seed and never from the trial's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from autotune.load.arrivals import arrival_times, burst_times, ramp_times
from autotune.load.lengths import draw_lengths
from autotune.load.report import Level
from autotune.load.traces import read_trace
from autotune.load.turns import NAN, Turn
from autotune.spec.study import LoadSpec

BLOCK = 256
"""Lengths are drawn in blocks of about this size, so that they do not depend on how many requests are used."""
HASHED_REQUESTS = 2048
"""The plan's hash covers the lengths and times of so many requests."""


def levels_of(spec: LoadSpec) -> list[Level]:
    """The levels of a load.

    A trace is replayed at its own pace times `trace.speed`, or at the mean rates that `levels` names when it is given.
    A trace without times (ShareGPT) runs in closed loop.

    Raises:
        SpecError: the trace cannot be read.
    """
    if spec.trace is not None and spec.arrivals == "trace":
        rate = mean_rate(read_trace(spec.trace, spec.seed))
        if rate is None:
            return [Level("closed", value) for value in spec.levels]
        return [Level("open", value) for value in (spec.levels if "levels" in spec.model_fields_set else [rate])]
    return [Level("closed" if spec.arrivals == "closed" else "open", value) for value in spec.levels]


def mean_rate(turns: Sequence[Turn]) -> float | None:
    """Requests a second of a trace, or None where it has no times."""
    if not turns or turns[0].due != turns[0].due:
        return None
    span = turns[-1].due - turns[0].due
    return (len(turns) - 1) / span if span > 0 else float(len(turns))


def planned_turns(spec: LoadSpec, level: Level, number: int) -> Iterator[Turn]:
    """The plan of one level: equal for all trials of a study (it depends on the load alone). Endless but for traces.

    Raises:
        SpecError: a trace or a file of lengths cannot be read.
    """
    if spec.trace is not None and spec.arrivals == "trace":
        turns = read_trace(spec.trace, spec.seed)
        rate = mean_rate(turns)
        stretch = rate / level.value if rate is not None else 1.0
        return _with_images(spec, number, iter([replace(turn, due=turn.due * stretch) for turn in turns]))
    return _with_images(spec, number, _drawn_turns(spec, level, number))


def _with_images(spec: LoadSpec, number: int, turns: Iterator[Turn]) -> Iterator[Turn]:
    """The turns with their number of images; who has some is part of the plan."""
    images = spec.images
    if images is None:
        return turns
    drawn = np.random.default_rng([spec.seed, number, 3])
    return (replace(turn, images=images.count) if drawn.random() < images.share else turn for turn in turns)


def _drawn_turns(spec: LoadSpec, level: Level, number: int) -> Iterator[Turn]:
    """Lengths and times from their distributions, whole conversations after each other.

    Streams of a closed loop begin together. Would all begin with a whole conversation, they would march through it in
    step, and a window of some waves would hold first turns alone or last ones, whose prompts are several times as long.
    So their first conversations have 1, 2, ... up to `turns` turns: from the `turns`-th wave on every wave holds as
    many of each.
    """
    lengths = np.random.default_rng([spec.seed, number, 1])
    times: Iterator[float] | None = None
    rate = level.value / spec.turns  # of conversations, whose turns are requests each
    if spec.arrivals in ("constant", "poisson", "gamma"):
        kind = spec.arrivals
        times = arrival_times(kind, rate, spec.burstiness, [spec.seed, number, 2])
    elif spec.arrivals == "bursts":
        times = burst_times(rate, spec.burst)
    elif spec.arrivals == "ramps":
        times = ramp_times(rate, spec.ramp.period, spec.ramp.swing, [spec.seed, number, 2])
    cut = round(level.value) if times is None else 0
    whole = max(1, BLOCK // spec.turns) * spec.turns  # a block ends with a conversation
    begun = -1
    while True:
        inputs = draw_lengths(spec.input_tokens, lengths, whole)
        outputs = draw_lengths(spec.output_tokens, lengths, whole)
        prefixes = lengths.integers(0, spec.prefix.count, whole) if spec.prefix else np.full(whole, -1)
        shares = lengths.random(whole)
        for position in range(whole):
            turn = position % spec.turns
            begun += turn == 0
            if begun < cut and turn > begun % spec.turns:
                continue
            follows = turn > 0
            use = spec.prefix is not None and shares[position - turn] < spec.prefix.share
            yield Turn(
                input_tokens=int(inputs[position]),
                output_tokens=int(outputs[position]),
                prefix=int(prefixes[position - turn]) if use else -1,
                due=next(times) if times is not None and not follows else NAN,
                follows=follows,
            )


def plan_hash(spec: LoadSpec, level: Level, turns: Iterator[Turn]) -> str:
    """Hash of the lengths and times of a level; equal for all trials of a study."""
    pictures = f" {spec.images.width}x{spec.images.height}" if spec.images is not None else ""
    digest = hashlib.blake2b(f"{spec.api} {level}{pictures}".encode(), digest_size=16)
    for _, turn in zip(range(HASHED_REQUESTS), turns, strict=False):
        due = "" if turn.due != turn.due else f"{turn.due:.6f}"
        fields = f"{turn.input_tokens} {turn.output_tokens} {turn.prefix} {due} {turn.follows} {turn.blocks}\n"
        fields += f"{turn.images} images\n" if turn.images else ""
        digest.update(fields.encode())
    return digest.hexdigest()


def plan_hashes(spec: LoadSpec) -> tuple[str, ...]:
    """The plan hash of every level of a load, in their order: what the reports of its trials carry.

    Raises:
        SpecError: a trace or a file of lengths cannot be read.
    """
    levels = enumerate(levels_of(spec))
    return tuple(plan_hash(spec, level, planned_turns(spec, level, number)) for number, level in levels)
