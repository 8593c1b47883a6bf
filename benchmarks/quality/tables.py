"""The page with the results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from autotune.quality.divergence import Divergence, statistics
from autotune.quality.reference import Noise

GSM8K_QUESTIONS = 1319
GSM8K_SHARE = 0.83
GSM8K_TOLERANCE = 0.08
SIZES = (4, 12, 24)


class Row(Protocol):
    """What the page needs of one damage."""

    name: str
    windows: tuple[Divergence, ...]
    traces: tuple[Divergence, ...]
    accuracy: float
    accuracy_before: float
    broken: tuple[str, ...]


def gsm8k_power(drop: float) -> float:
    """Chance that measured < stored - tolerance after a true fall by `drop` (binomial, normal approximation)."""
    share = GSM8K_SHARE - drop
    spread = math.sqrt(share * (1 - share) / GSM8K_QUESTIONS)
    return 0.5 * math.erfc((drop - GSM8K_TOLERANCE) / spread / -math.sqrt(2))


def page(
    rows: Sequence[Row],
    noise: Mapping[str, Noise],
    power: Callable[[Row, Mapping[str, Noise], int], tuple[float, float]],
    documents: int,
    positions: int,
) -> str:
    """Markdown with everything that was measured."""
    parts = [
        _HEAD.format(documents=documents, positions=positions),
        _divergence(rows),
        _POWER,
        _power(rows, noise, power),
    ]
    return "\n".join([*parts, _NOISE, _noise(noise), _GSM8K, _gsm8k(), ""])


def _divergence(rows: Sequence[Row]) -> str:
    head = ("damage", "tier 0", "KL, nats/token", "KL while writing", "perplexity", "agreement where sure", "accuracy")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        read, wrote = statistics(row.windows), statistics(row.traces)
        change = [f"{math.expm1(edge):+.1%}" for edge in (read.loss.value, read.loss.low, read.loss.high)]
        cells = (
            row.name,
            ", ".join(row.broken) or "–",
            f"{read.kl.value:.4f} ({read.kl.low:.4f} to {read.kl.high:.4f})",
            f"{wrote.kl.value:.4f}",
            f"{change[0]} ({change[1]} to {change[2]})",
            f"{read.agreement.value:.1%}",
            f"{100 * (row.accuracy - row.accuracy_before):+.1f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _power(
    rows: Sequence[Row],
    noise: Mapping[str, Noise],
    power: Callable[[Row, Mapping[str, Noise], int], tuple[float, float]],
) -> str:
    sizes = [size for size in SIZES if size <= min(len(row.windows) for row in rows)]
    head = " | ".join(f"{size} texts" for size in sizes)
    lines = [f"| damage | {head} | GSM8K within 0.08 |", "|---|" + "---|" * (len(sizes) + 1)]
    for row in rows:
        shares = [power(row, noise, size) for size in sizes]
        cells = " | ".join(f"{failed:.0%} / {stopped:.0%}" for failed, stopped in shares)
        drop = max(0.0, row.accuracy_before - row.accuracy)
        lines.append(f"| {row.name} | {cells} | {gsm8k_power(drop):.0%} |")
    return "\n".join(lines)


def _noise(noise: Mapping[str, Noise]) -> str:
    lines = ["| path | KL | log-probability | disagreement |", "|---|---|---|---|"]
    lines += [f"| {name} | {n.kl:.5f} | {n.loss:.5f} | {n.disagreement:.2%} |" for name, n in noise.items()]
    return "\n".join(lines)


def _gsm8k() -> str:
    drops = (0.01, 0.02, 0.03, 0.05, 0.08, 0.10)
    lines = [
        "| fall, points | " + " | ".join(f"{100 * drop:.0f}" for drop in drops) + " |",
        "|---" * (len(drops) + 1) + "|",
    ]
    lines.append("| seen | " + " | ".join(f"{gsm8k_power(drop):.1%}" for drop in drops) + " |")
    return "\n".join(lines)


_HEAD = """# What the quality gate catches

Real vLLM 0.32.0 on the CPU, SmolLM2-135M-Instruct in bfloat16, {documents} texts of {positions} positions. Made by
`python -m benchmarks.quality.power`. A model this small suffers more from rounding than a large one: the order of the
damages carries over, the absolute figures do not.

*Accuracy* is the change of how often the likeliest token is the text's own next one, in points: a task on the same
texts. Intervals are 95 % over texts. `noise S` is Gaussian noise of S standard deviations on the MLP of one layer of
thirty; `int8 32`, `int4 32` are rounding to nearest in groups of 32; `fp8` is e4m3 with one scale per row; `rope 10000`
is a wrong base (right: 100000); `template` is another chat template.
"""
_POWER = """
## How often it is caught

Share of 300 random subsets of the texts on which the gate says `failed` / does not say `passed` (an undecided
configuration is not recommended either), without the further texts that an undecided check is given. Last column: how
often a GSM8K run of 1,319 questions at 83 % falls below a stored value by more than 0.08, if it lost as many points as
the accuracy above (a stand-in: this model is too small for GSM8K itself). All subsets come from one scoring of each
damage, and there is only one subset of all texts: that column is a single verdict. A study with few texts scores three
times as many where the first ones leave it undecided.
"""
_NOISE = """
## The noise floor

The reference against itself: other order, other batches, alone.
"""
_GSM8K = """
## A stored GSM8K value with a tolerance of 0.08

vLLM's own evaluation accepts a measured value down to 0.08 below the stored one.
"""
