"""The proof: finalists and baseline on fresh starts, interleaved, and what may be claimed of them.

Numbers of the search never enter a claim: the winner of many noisy trials was partly lucky.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from autotune.load.area import area_of
from autotune.load.report import Estimate
from autotune.outcome import Broken, Measured, Proposal, TrialRecord
from autotune.quality.report import QualityVerdict
from autotune.search.front import front_of, knee_of
from autotune.search.health import settled
from autotune.search.objectives import Objective, Objectives, searched
from autotune.search.paired import Gain, Ratio, compare
from autotune.space.config import EngineConfig

ERROR = 0.05
"""Chance that two identical configurations are called different, over all claims of a study."""
TIE = 0.02
"""Search numbers closer than this are a tie; the configuration with fewer changes goes first."""
CONFIDENT = 1.0
"""An SLO holds where its latency plus so many standard errors over the rounds is below the limit."""


@dataclass(frozen=True, slots=True)
class ConfirmRun:
    """One fresh start of the confirmation.

    Attributes:
        round: 0-based round.
        proposal: a finalist, or the baseline.
        arrival_seed: seed of arrivals and lengths; the same for all runs of a round.
    """

    round: int
    proposal: Proposal
    arrival_seed: int


def finalists(
    records: Sequence[TrialRecord], objectives: Objectives, count: int, baseline: EngineConfig
) -> list[TrialRecord]:
    """The best record of each objective, the knee of the front, then the next best in the first objective.

    Only records that hold all limits; the baseline is never among them. Ties go to fewer changes from the baseline.
    """
    feasible = [one for one in searched(records) if objectives.feasible(one) and one.config.hash != baseline.hash]
    if not feasible:
        return []
    picked = [_best_in(index, feasible, objectives, baseline) for index in range(len(objectives.items))]
    knee = knee_of(front_of(feasible, objectives), objectives)
    picked += [knee] if knee is not None else []
    picked += sorted(feasible, key=objectives.rank)
    unique = {record.config.hash: record for record in reversed(picked)}
    order = {record.config.hash: index for index, record in reversed(list(enumerate(picked)))}
    return sorted(unique.values(), key=lambda record: order[record.config.hash])[:count]


def _best_in(
    index: int, feasible: Sequence[TrialRecord], objectives: Objectives, baseline: EngineConfig
) -> TrialRecord:
    losses = {
        one.number: objectives.model_losses(values)[index] for one in feasible if (values := objectives.values(one))
    }
    best = min(losses.values())
    tied = [one for one in feasible if losses[one.number] <= best + math.log1p(TIE)]
    return min(tied, key=lambda one: (len(one.config.changes_from(baseline)), losses[one.number]))


def plan(
    chosen: Sequence[TrialRecord],
    baseline: EngineConfig,
    rounds: int,
    *,
    seed: int = 1,
    rivals: Mapping[str, EngineConfig] | None = None,
) -> list[ConfirmRun]:
    """All runs in their order. Every round has each arm once; who begins rotates, so that a drift hits all alike.

    Args:
        chosen: the finalists.
        baseline: what runs today.
        rounds: of fresh starts.
        seed: of the load.
        rivals: further configurations by name; one that is the baseline or a finalist is no arm of its own.
    """
    arms = [Proposal(baseline, origin="confirm", note="what you run today")]
    arms += [Proposal(one.config, one.proposal.point, "confirm", f"finalist, trial {one.number}") for one in chosen]
    known = {arm.config.hash for arm in arms}
    others = {config.hash: (name, config) for name, config in (rivals or {}).items() if config.hash not in known}
    arms += [Proposal(config, origin="confirm", note=f"to compare with: {name}") for name, config in others.values()]
    runs: list[ConfirmRun] = []
    for number in range(rounds):
        shift = number % len(arms)
        order = arms[shift:] + arms[:shift]
        runs += [ConfirmRun(number, arm, seed + 1000 + number) for arm in order]
    return runs


def next_run(runs: Sequence[ConfirmRun], history: Sequence[TrialRecord]) -> ConfirmRun | None:
    """The first run of the plan that has no outcome yet, for a study that was interrupted. Faults are run again."""
    done: dict[str, int] = {}
    for record in settled(history, "confirm"):
        done[record.config.hash] = done.get(record.config.hash, 0) + 1
    for run in runs:
        if done.get(run.proposal.config.hash, 0) <= run.round:
            return run
    return None


def rounds_of(history: Sequence[TrialRecord], origin: str = "confirm") -> list[dict[str, TrialRecord]]:
    """Records of a confirmation by round and configuration hash: the n-th outcome of an arm belongs to round n."""
    rounds: list[dict[str, TrialRecord]] = []
    seen: dict[str, int] = {}
    for record in settled(history, origin):
        number = seen.get(record.config.hash, 0)
        seen[record.config.hash] = number + 1
        while len(rounds) <= number:
            rounds.append({})
        rounds[number][record.config.hash] = record
    return rounds


@dataclass(frozen=True)
class ArmResult:
    """What the confirmation says of one finalist.

    Attributes:
        config: the finalist.
        ratios: one per objective against the baseline; empty where the baseline or the arm could not be measured.
        limits_hold: every SLO held with confidence, the quality gate passed, and no round failed.
        problems: why limits do not hold, in words.
        verdict: `better`, `trade` (better in one objective, worse in another), `tie`, `worse` or `infeasible`.
        changes: number of settings that differ from the baseline.
    """

    config: EngineConfig
    ratios: tuple[Ratio, ...]
    limits_hold: bool
    problems: tuple[str, ...]
    verdict: str
    changes: int


@dataclass(frozen=True)
class Confirmation:
    """The result of a confirmation.

    Attributes:
        arms: finalists in the order they were planned.
        winner: the one to recommend, or None: nothing is better than what runs today.
        sentence: the claim.
        baseline_holds: what runs today holds all limits.
        rounds: completed rounds.
        margin: smallest gain that counts.
    """

    arms: tuple[ArmResult, ...]
    winner: ArmResult | None
    sentence: str
    baseline_holds: bool
    rounds: int
    margin: float


@dataclass(frozen=True)
class _Arm:
    """One configuration over the rounds."""

    config: EngineConfig
    records: tuple[TrialRecord | None, ...]
    problems: tuple[str, ...] = field(default=())


def analyse(
    rounds: Sequence[Mapping[str, TrialRecord]],
    objectives: Objectives,
    baseline: EngineConfig,
    *,
    margin: float = 0.02,
    error: float = ERROR,
    extra_spread: float = 0.0,
) -> Confirmation:
    """Judge the finalists.

    Args:
        rounds: by round, the record of each configuration hash (see `rounds_of`).
        objectives: what counts, the first one most.
        baseline: what runs today.
        margin: the lower bound of a gain must exceed this before it is claimed.
        error: chance of a false claim over all comparisons.
        extra_spread: standard deviation of the machine's drift (see `drift.py`), added to every log-ratio.
    """
    configs = {record.config.hash: record.config for one in rounds for record in one.values()}
    arms = {key: _Arm(config, tuple(one.get(key) for one in rounds)) for key, config in configs.items()}
    control = arms.pop(baseline.hash, _Arm(baseline, ()))
    # A fault of ours is no limit that the baseline breaks: such a round compares nothing.
    served = tuple(one if one is not None and not isinstance(one.outcome, Broken) else None for one in control.records)
    control = replace(control, records=served)
    control_problems = _problems(control, objectives)
    pairs = {key: (arm, control) for key, arm in arms.items()}
    ratios = _ratios(pairs, objectives, error, extra_spread, len(arms) * len(objectives.items))
    missing = not any(control.records)  # nothing to compare with is no reason to change what runs
    against = () if missing else control_problems
    results = tuple(_judge(arm, ratios[key], against, objectives, margin, baseline) for key, arm in arms.items())
    winner = None if missing else _winner(results, margin)
    sentence = "what you run today could not be measured again" if missing else _claim(winner, results, against)
    return Confirmation(results, winner, sentence, not control_problems, len(rounds), margin)


def versus(
    rounds: Sequence[Mapping[str, TrialRecord]],
    objectives: Objectives,
    config: EngineConfig,
    rival: EngineConfig,
    *,
    error: float = ERROR,
    extra_spread: float = 0.0,
) -> tuple[Ratio, ...]:
    """One arm of a confirmation over another one, a ratio per objective; empty where they share no round."""
    share = error / len(objectives.items)
    return over_each(rounds, objectives, config, [rival], error=share, extra_spread=extra_spread)[rival.hash]


def over_each(
    rounds: Sequence[Mapping[str, TrialRecord]],
    objectives: Objectives,
    config: EngineConfig,
    rivals: Sequence[EngineConfig],
    *,
    error: float,
    extra_spread: float = 0.0,
) -> dict[str, tuple[Ratio, ...]]:
    """One arm over each of several, a ratio per objective by the rival's hash; empty where they share no round.

    The spread is pooled over the rivals; each interval by itself is off on one side with the chance `error`.
    """
    mine = _Arm(config, tuple(one.get(config.hash) for one in rounds))
    theirs = [_Arm(rival, tuple(one.get(rival.hash) for one in rounds)) for rival in rivals]
    return _ratios({arm.config.hash: (mine, arm) for arm in theirs}, objectives, error, extra_spread)


def _ratios(
    pairs: Mapping[str, tuple[_Arm, _Arm]], objectives: Objectives, error: float, extra: float, comparisons: int = 1
) -> dict[str, tuple[Ratio, ...]]:
    """The first arm of each pair over the second one, a ratio per objective; `error` is shared by `comparisons`."""
    found: dict[str, list[Ratio]] = {key: [] for key in pairs}
    for index, item in enumerate(objectives.items):
        gains = {key: _gains(arm, control, index, objectives, extra) for key, (arm, control) in pairs.items()}
        for key, ratio in compare(gains, item.label, error=error, comparisons=comparisons).items():
            found[key].append(ratio)
    return {key: tuple(ratios) if len(ratios) == len(objectives.items) else () for key, ratios in found.items()}


def _gains(arm: _Arm, control: _Arm, index: int, objectives: Objectives, extra: float) -> list[Gain]:
    gains: list[Gain] = []
    for mine, theirs in zip(arm.records, control.records, strict=False):
        own = objectives.values(mine) if mine is not None else None
        other = objectives.values(theirs) if theirs is not None else None
        if mine is None or theirs is None or own is None or other is None:
            continue
        difference = objectives.model_losses(other)[index] - objectives.model_losses(own)[index]
        item = objectives.items[index]
        within = math.hypot(block_error(mine, item, objectives), block_error(theirs, item, objectives), extra)
        gains.append(Gain(difference, within))
    return gains


def block_error(record: TrialRecord, item: Objective, objectives: Objectives) -> float:
    """Relative standard error of one figure from its time blocks: a quarter of its 95 % interval.

    It is that of the level that the objective reads; of the best level, which may be another one in each record, the
    largest of all levels.
    """
    if not isinstance(record.outcome, Measured):
        return 0.0
    levels = record.outcome.load.levels
    if item.level == "area":
        return _relative_error(area_of(levels, item.key))
    if item.level == "best":
        return max((_relative_error(level.estimate(item.key)) for level in levels), default=0.0)
    report = objectives.report_at(item.level, levels)
    return _relative_error(report.estimate(item.key)) if report is not None else 0.0


def _relative_error(estimate: Estimate | None) -> float:
    if estimate is None or estimate.value <= 0 or not math.isfinite(estimate.high - estimate.low):
        return 0.0
    return max(estimate.high - estimate.low, 0.0) / (3.92 * estimate.value)


def _problems(arm: _Arm, objectives: Objectives) -> tuple[str, ...]:
    """Why a configuration may not be recommended; empty when it may."""
    records = [record for record in arm.records if record is not None]
    if not records:
        return ("it was not measured",)
    failed = [record for record in records if objectives.values(record) is None]
    if failed:
        return (f"{len(failed)} of {len(records)} fresh starts gave no figures",)
    rows = [objectives.constraints(record) for record in records]
    found: list[str] = []
    for index, slo in enumerate(objectives.slos):
        column = [row[index] for row in rows]
        mean = sum(column) / len(column)
        spread = math.sqrt(sum((one - mean) ** 2 for one in column) / (len(column) - 1)) if len(column) > 1 else 0.0
        if mean + CONFIDENT * spread / math.sqrt(len(column)) > 0:
            found.append(f"{slo.key} was x{math.exp(mean):.2f} of its limit of {slo.limit_ms:g} ms")
    reports = [record.outcome.quality for record in records if isinstance(record.outcome, Measured)]
    if any(report is not None and report.verdict == QualityVerdict.FAILED for report in reports):
        found.append("the quality gate failed")
    last = next((report for report in reversed(reports) if report is not None), None)
    if last is not None and last.verdict == QualityVerdict.UNDECIDED:
        found.append("the quality gate could not decide")
    return tuple(found)


def _judge(
    arm: _Arm,
    ratios: tuple[Ratio, ...],
    control_problems: Sequence[str],
    objectives: Objectives,
    margin: float,
    baseline: EngineConfig,
) -> ArmResult:
    problems = _problems(arm, objectives)
    changes = len(arm.config.changes_from(baseline))
    if problems:
        verdict = "infeasible"
    elif control_problems:
        verdict = "better"
    elif not ratios:
        verdict = "tie"
    else:
        gained = any(ratio.low > 1 + margin for ratio in ratios)
        lost = any(ratio.high < 1 - margin for ratio in ratios)
        verdict = {(True, False): "better", (True, True): "trade", (False, True): "worse"}.get((gained, lost), "tie")
    return ArmResult(arm.config, ratios, not problems, problems, verdict, changes)


def _winner(results: Sequence[ArmResult], margin: float) -> ArmResult | None:
    """Better in the first objective if anyone is, else better in another without loss; ties to fewer changes."""
    first = [one for one in results if one.limits_hold and one.ratios and one.ratios[0].low > 1 + margin]
    others = [one for one in results if one.verdict == "better"]
    pool = first or others
    if not pool:
        return None
    best = max(one.ratios[0].value if one.ratios else 1.0 for one in pool)
    tied = [one for one in pool if (one.ratios[0].value if one.ratios else 1.0) >= best * (1 - margin)]
    return min(tied, key=lambda one: (one.verdict != "better", one.changes))


def _claim(winner: ArmResult | None, results: Sequence[ArmResult], control_problems: Sequence[str]) -> str:
    if winner is None:
        return "nothing was proven to be better" if results else "nothing was confirmed"
    if control_problems:
        return f"it holds all limits; what you run today does not: {control_problems[0]}"
    best = next((one for one in winner.ratios if one.low > 1), winner.ratios[0])
    lost = [one for one in winner.ratios if one.high < 1]
    text = f"better than what you run today: {best}"
    return f"{text}, at the price of {lost[0]}" if lost else text
