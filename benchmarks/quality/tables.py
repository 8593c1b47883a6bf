"""The page with the results."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from autotune.quality.divergence import Divergence, statistics
from autotune.quality.reference import Noise

SIZES = (4, 12)
DROPS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.10)


@dataclass(frozen=True, slots=True)
class Rule:
    """A stored accuracy on GSM8K and how far a run may fall below it, as in vLLM's own CI."""

    name: str
    questions: int
    stored: float
    allowed: float

    def seen(self, drop: float) -> float:
        """Chance that a run falls below the limit after a true fall by `drop` (binomial, normal approximation)."""
        share = self.stored - drop
        spread = math.sqrt(share * (1 - share) / self.questions)
        return 0.5 * math.erfc((drop - self.allowed) / spread / -math.sqrt(2))


LM_EVAL = Rule("lm-eval harness", 250, 0.756, 0.08 * 0.756)
"""`.buildkite/lm-eval-harness/test_lm_eval_correctness.py`: `DEFAULT_RTOL = 0.08`, a run must reach stored x (1 -
rtol); the sizes are those of `configs/Meta-Llama-3-8B-Instruct.yaml` (limit 250, strict match 0.756)."""
SCRIPT = Rule("GSM8K script", 1319, 0.83, 0.08)
"""`tests/evals/gsm8k/test_gsm8k_correctness.py`: `tol = eval_config.get("tolerance", 0.08)`, a run must reach stored -
tol, on 1,319 questions."""


class Row(Protocol):
    """What the page needs of one damage."""

    name: str
    windows: tuple[Divergence, ...]
    traces: tuple[Divergence, ...]
    accuracy: float
    accuracy_before: float
    broken: tuple[str, ...]


class Run(Protocol):
    """What the page needs of one run of the gate, see `repeats.Verdict`."""

    @property
    def size(self) -> float: ...
    @property
    def round(self) -> int: ...
    @property
    def started(self) -> bool: ...
    @property
    def verdict(self) -> str: ...
    @property
    def kl(self) -> tuple[float, float, float]: ...
    @property
    def perplexity(self) -> float: ...
    @property
    def agreement(self) -> float: ...
    @property
    def texts(self) -> int: ...
    @property
    def accuracy(self) -> float: ...
    @property
    def accuracy_before(self) -> float: ...
    @property
    def seconds(self) -> float: ...


def page(
    rows: Sequence[Row],
    runs: Sequence[Run],
    noise: Mapping[str, Noise],
    power: Callable[[Row, Mapping[str, Noise], int], tuple[float, float]],
    documents: int,
    positions: int,
    more: Sequence[str] = (),
) -> str:
    """Markdown with everything that was measured; `more` are further sections."""
    questions = documents * positions
    parts = [
        _HEAD.format(documents=documents, positions=positions),
        _divergence(rows),
        _between(rows),
        _REPEATED.format(questions=questions),
        repeated(runs, questions),
        _STARTED,
        started(runs),
        _GSM8K,
        _gsm8k(),
        _POWER,
        _power(rows, noise, power),
        _NOISE,
        _noise(noise),
    ]
    return "\n".join([*parts, *more, ""])


def _between(rows: Sequence[Row]) -> str:
    """Where the 8-bit float lies."""
    found = {row.name: statistics(row.windows).kl for row in rows}
    told = {name: f"{kl.value:.4f} ({kl.low:.4f} to {kl.high:.4f})" for name, kl in found.items()}
    if not {"int8 32", "fp8 0", "int4 32"} <= told.keys():
        return ""
    return (
        f"\nFP8-like rounding lies between 8-bit and 4-bit integers: {told['int8 32']}, then {told['fp8 0']}, then "
        f"{told['int4 32']} nats per token. On this model it is beyond the default limits."
    )


def repeated(runs: Sequence[Run], questions: int) -> str:
    """Damage size against how often it is caught."""
    head = ("noise", "runs", "KL, nats/token", "perplexity", "failed", "not passed", "caught, 95 %", "accuracy, points",
            f"{questions:,} questions within 0.08", LM_EVAL.name, SCRIPT.name)  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for size in sorted({run.size for run in runs}):
        some = [run for run in runs if run.size == size and not run.started]
        if some:
            lines.append(_size_row(size, some))
    return "\n".join(lines)


def _size_row(size: float, runs: Sequence[Run]) -> str:
    failed = sum(run.verdict == "failed" for run in runs)
    stopped = sum(run.verdict != "passed" for run in runs)
    low, high = wilson(stopped, len(runs))
    falls = [run.accuracy_before - run.accuracy for run in runs]
    fall = sum(falls) / len(falls)
    caught = sum(one > SCRIPT.allowed for one in falls)
    cells = (
        f"{size:g}" if size else "none", str(len(runs)), _span([run.kl[0] for run in runs], "{:.4f}"),
        _span([100 * run.perplexity for run in runs], "{:+.1f} %"), str(failed), str(stopped),
        f"{stopped / len(runs):.0%} ({low:.0%} to {high:.0%})", f"{0.0 - 100 * round(fall, 4):+.1f}",
        f"{caught} of {len(runs)}",
        f"{LM_EVAL.seen(max(0.0, fall)):.1%}", f"{SCRIPT.seen(max(0.0, fall)):.1%}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def wilson(hits: int, runs: int) -> tuple[float, float]:
    """95 % interval of a share (E. B. Wilson 1927)."""
    z, share = 1.96, hits / runs
    centre = (share + z * z / (2 * runs)) / (1 + z * z / runs)
    half = z * math.sqrt(share * (1 - share) / runs + z * z / (4 * runs * runs)) / (1 + z * z / runs)
    return max(0.0, centre - half), min(1.0, centre + half)


def _span(values: Sequence[float], form: str) -> str:
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


def started(runs: Sequence[Run]) -> str:
    """The same copies loaded into a running engine and started on."""
    head = ("noise", "seed", "how", "verdict", "KL", "perplexity", "agreement", "texts")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    if not any(run.started for run in runs):
        return "not measured yet."
    for one in (run for run in runs if run.started):
        same = [run for run in runs if (run.size, run.round) == (one.size, one.round)]
        for run in sorted(same, key=lambda run: run.started):
            cells = (
                f"{run.size:g}", str(run.round), "started on it" if run.started else "loaded", run.verdict,
                f"{run.kl[0]:.5f}", f"{run.perplexity:+.3%}", f"{run.agreement:.2%}", str(run.texts),
            )  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


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
    lines = [f"| damage | {head} |", "|---|" + "---|" * len(sizes)]
    for row in rows:
        shares = [power(row, noise, size) for size in sizes]
        cells = " | ".join(f"{failed:.0%} / {stopped:.0%}" for failed, stopped in shares)
        lines.append(f"| {row.name} | {cells} |")
    return "\n".join(lines)


def _noise(noise: Mapping[str, Noise]) -> str:
    lines = ["| path | KL | log-probability | disagreement |", "|---|---|---|---|"]
    lines += [f"| {name} | {n.kl:.5f} | {n.loss:.5f} | {n.disagreement:.2%} |" for name, n in noise.items()]
    return "\n".join(lines)


def _gsm8k() -> str:
    lines = ["| fall, points | " + " | ".join(f"{100 * drop:.0f}" for drop in DROPS) + " |", "|---" * 8 + "|"]
    for rule in (LM_EVAL, SCRIPT):
        name = f"{rule.name}, {rule.questions:,} questions"
        lines.append(f"| {name} | " + " | ".join(f"{rule.seen(drop):.1%}" for drop in DROPS) + " |")
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
_REPEATED = """
## How often it is caught

Repeated runs of the whole gate, each round on an engine of its own start with noise drawn anew; all texts where the
first ones did not decide. *Not passed* is failed or undecided: neither is recommended. The interval is Wilson's.
KL over the tokens that both list is a lower bound: on weights that are destroyed (noise 2) it falls again, and
perplexity tells.

The last three columns are what a stored accuracy with a tolerance would have said. The first of them is counted in
these runs: how often the accuracy on the {questions:,} next-token questions of the same texts (greedy, exact match)
fell by more than 0.08. The two others are calculated for GSM8K, which this model cannot do: vLLM's own rules (below),
had GSM8K fallen by as many points as the accuracy on these texts. That is a stand-in: it says what such a rule can see,
not what GSM8K would have lost.
"""
_STARTED = """
Weights loaded into a running engine are as good as an engine started on them (same texts, same noise):
"""
_GSM8K = """
## vLLM's tolerances

What vLLM's CI accepts, and how often it sees a true fall of GSM8K (calculated, binomial). `lm-eval harness` is
`.buildkite/lm-eval-harness/test_lm_eval_correctness.py`: at least the stored value x (1 - 0.08); 250 questions and
75.6 % are those of `Meta-Llama-3-8B-Instruct.yaml`. `GSM8K script` is `tests/evals/gsm8k/test_gsm8k_correctness.py`: at
least the stored value - 0.08; 1,319 questions, at 83 % here.
"""
_POWER = """
## With fewer texts

Share of 100 random subsets of the texts on which the gate says `failed` / does not say `passed`, without the further
texts that an undecided check is given. All subsets come from one scoring of each damage (the first table): this shows
what few texts cost, not how runs differ.
"""
_NOISE = """
## The noise floor

The reference against itself: other order, other batches, alone.
"""


def further(folder: Path) -> list[str]:
    """Sections of the other benchmarks here, where they were run: `hooks.json`, `long.json`, `memory.json`."""
    parts: list[str] = []
    for name, text, cells, head in (
        ("hooks.json", _HOOKS, _hooks_cells, _HOOKS_HEAD),
        ("long.json", _LONG, _long_cells, _LONG_HEAD),
        ("long-16640.json", _LONGER, _long_cells, _LONG_HEAD),
        ("memory.json", _MEMORY, _memory_cells, _MEMORY_HEAD),
    ):
        if (folder / name).is_file():
            rows = json.loads((folder / name).read_text("utf-8"))
            parts += [text, _table(rows, cells, head)]
    return parts


def _table(
    rows: Sequence[Mapping[str, Any]], cells: Callable[[Mapping[str, Any]], Sequence[str]], head: Sequence[str]
) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(cells(row))} |" for row in rows)])


_HOOKS_HEAD = ("weights", "with", "verdict", "KL while reading", "KL while writing", "positions read, written",
               "requests", "seconds")  # fmt: skip


def _hooks_cells(row: Mapping[str, Any]) -> Sequence[str]:
    ways = "hooks" if row["hooks"] else "top 20, following"
    positions = f"{row['positions']}, {row['decode_positions']}"
    return (row["name"], ways, row["verdict"], _interval(row["kl"]), _interval(row["decode_kl"]), positions,
            str(row["requests"]), f"{row['seconds']:.0f}")  # fmt: skip


def _interval(values: Sequence[float]) -> str:
    return f"{values[0]:.5f} ({values[1]:.5f} to {values[2]:.5f})"


_LONG_HEAD = (
    "engine",
    "check",
    "KL, nats/token",
    "positions",
    "noise floor",
    "limit",
    "verdict",
    "the gate's, seconds",
)


def _long_cells(row: Mapping[str, Any]) -> Sequence[str]:
    noise, limit = f"{row['noise']:.5f}", f"{row['limit']:g}"
    overall = f"{row['overall']}, {row['seconds']:.0f}"
    return (row["engine"], row["check"], _interval(row["kl"]), str(row["positions"]), noise, limit, row["verdict"],
            overall)  # fmt: skip


_MEMORY_HEAD = ("positions of a prompt", "in flight", "peak above before, MiB", "seconds")


def _memory_cells(row: Mapping[str, Any]) -> Sequence[str]:
    return (f"{row['positions']:,}", str(row["in_flight"]), f"{row['mib']:,.0f}", f"{row['seconds']:.0f}")


_HOOKS = """
## With vLLM's newer hooks

`python -m benchmarks.quality.hooks`: the whole gate (`Gate.check`, tiers 0 and 1, an answer under a JSON schema
included) on the real vLLM 0.32.0 with its V2 model runner, whose Triton kernels run in Triton's interpreter; scoring by
the reference's ids (`prompt_logprob_token_ids`) and trace replay (`trace_decode_token_ids`). Below each row the same
checks on the same engine and texts without them. Four texts of 32 positions, twelve where these do not decide. Both say
the same of all weights; on exactly the reference's tokens more of a damage is seen. Seconds are the interpreter's.
"""
_LONG = """
## Long contexts and other precisions

`python -m benchmarks.quality.long`: the whole gate with the suite's long contexts, on two cores; each precision on a
start of its own, compared with bfloat16. Behind 4,096 tokens 16 are written, after four texts, after eight where these
do not decide. Of two texts the same run left both fp8 caches open at 4,096 tokens (0.030, 0.000 to 0.063, and 0.149,
0.000 to 0.463).
"""
_LONGER = """
`python -m benchmarks.quality.long --context 16640`: the same with 16,384 tokens, twice what the model was trained for:
what it writes is poor, how far two engines are apart is real all the same.
"""
_MEMORY = """
## What scoring costs in memory

`python -m benchmarks.quality.memory`: peak of all engine processes above what they held before; 6,144 positions in
every row, a vocabulary of 49,152. The gate sends prompts of at most 256 positions, two at a time.
"""
