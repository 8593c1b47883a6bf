"""A small study without an engine: a space, records and an outcome function, for tests of proposers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from autotune.load.report import Estimate, Level, LevelReport, LoadReport
from autotune.outcome import Infeasible, Measured, Outcome, Proposal, TrialRecord
from autotune.search.objectives import Objective, Objectives
from autotune.search.proposer import Proposer
from autotune.space.config import EngineConfig, FrozenValue
from autotune.space.expression import parse_expression
from autotune.space.space import Parameter, SearchSpace

BASELINE = EngineConfig.of({"seqs": 64, "batched": 2048, "weights": "none", "graph": "full", "capture": 64})
OBJECTIVES = Objectives(
    items=(Objective("output_throughput", True, "last"), Objective("ttft_p95_ms", False, "last")), levels=(64.0,)
)


def toy_space() -> SearchSpace:
    """Five parameters: two ladders, two choices, one conditional ladder."""
    return SearchSpace(
        name="toy",
        parameters=(
            Parameter("seqs", "ladder", (16, 32, 64, 128, 256, 512), ordered=True),
            Parameter("batched", "ladder", (512, 1024, 2048, 4096, 8192, 16384), ordered=True),
            Parameter("weights", "choice", ("none", "fp8", "int4")),
            Parameter("graph", "choice", ("none", "full")),
            Parameter("capture", "ladder", (16, 64, 256), when=parse_expression('graph == "full"'), ordered=True),
        ),
        requires=(parse_expression("batched >= seqs"),),
    )


def crashes(args: Mapping[str, FrozenValue]) -> bool:
    """Out of memory in about 40 % of the box."""
    need = math.log2(_number(args, "batched")) + 0.8 * math.log2(_number(args, "seqs"))
    return need > {"none": 16.4, "fp8": 18.2, "int4": 18.8}[str(args.get("weights"))]


def outcome_of(config: EngineConfig) -> Outcome:
    """A deterministic outcome with a trade-off between throughput and TTFT."""
    args = dict(config.args)
    if crashes(args):
        return Infeasible("oom_serving", "out of memory in the toy", violation=1.0)
    seqs, batched = _number(args, "seqs"), _number(args, "batched")
    speed = {"none": 1.0, "fp8": 1.5, "int4": 1.2}[str(args.get("weights"))]
    graph = 1.15 if args.get("graph") == "full" and _number(args, "capture") >= seqs / 4 else 1.0
    throughput = 1000 * speed * graph * (1 - math.exp(-seqs / 90)) * (1 - math.exp(-batched / 1500))
    ttft = 80 * (1 + batched / 3000) * (1 + 60 / seqs) / speed
    return measured({"output_throughput": throughput, "ttft_p95_ms": ttft})


def measured(
    metrics: Mapping[str, float], *, level: float = 64.0, engine: Mapping[str, float] | None = None
) -> Measured:
    """A measurement with one closed level."""
    figures = tuple((key, Estimate(value, value * 0.98, value * 1.02, 100)) for key, value in metrics.items())
    report = LevelReport(
        Level("closed", level), figures, requests=100, window_s=20, engine=tuple((engine or {}).items())
    )
    return Measured(LoadReport((report,)))


def record_of(
    number: int, proposal: Proposal, outcome: Outcome, *, seconds: float = 120.0, restarted: bool = True, gpus: int = 1
) -> TrialRecord:
    """A record at a made-up time: each trial starts when the one before has ended."""
    ran = not isinstance(outcome, Infeasible) or outcome.started
    stages = (("start", seconds * 0.7 if restarted else 2.0), ("measure", seconds * 0.3)) if ran else ()
    return TrialRecord(
        number=number, proposal=proposal, outcome=outcome, started_at=1_700_000_000.0 + number * seconds,
        seconds=seconds, gpus=gpus, stage_seconds=stages, restarted=restarted,
    )  # fmt: skip


def play(
    proposer: Proposer,
    trials: int,
    outcome: Callable[[EngineConfig], Outcome] = outcome_of,
    history: Sequence[TrialRecord] = (),
) -> list[TrialRecord]:
    """Run a study until it has so many records or the proposer is exhausted."""
    records = list(history)
    while len(records) < trials:
        proposal = proposer.propose(records)
        if proposal is None:
            break
        record = record_of(len(records), proposal, outcome(proposal.config))
        records.append(record)
        proposer.told(record)
    return records


def _number(args: Mapping[str, FrozenValue], name: str) -> float:
    value = args.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
