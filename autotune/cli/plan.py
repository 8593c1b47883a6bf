"""`autotune plan`: what a study needs and costs, before anything is started."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.assembly import StudyFrame, frame, model_facts
from autotune.cli.layouts_text import print_layouts
from autotune.cli.terminal import terminal
from autotune.engine.live_scheduler import SharedFileFactory
from autotune.engine.registry import create_engine
from autotune.errors import AutotuneError, EnvironmentFault
from autotune.host.gpus import GpuHost, read_gpus
from autotune.outcome import TrialRecord
from autotune.preflight.expense import Expense, TrialSeconds, expense, prior_seconds
from autotune.preflight.host_rules import HostFinding, check_host, read_host
from autotune.preflight.layouts import LayoutRow, layout_rows
from autotune.preflight.memory import MemoryBudget
from autotune.preflight.rules import Refusal, warnings
from autotune.preflight.study import StudyPreflight
from autotune.preflight.survey import Survey, survey
from autotune.report.wording import duration_text
from autotune.search.neighbours import LEAST_ROUNDS, MOST_ROUNDS
from autotune.search.restart import CostModel
from autotune.space.arguments import bundled_table
from autotune.space.catalogue import space_candidates
from autotune.space.config import EngineConfig
from autotune.study import Study, open_study

_GIB = 2**30


@dataclass(frozen=True)
class StudyPlan:
    """All that is said about a study before it runs."""

    study: Study
    preflight: StudyPreflight
    baseline: EngineConfig
    budget: MemoryBudget | None
    refused: tuple[Refusal, ...]
    warnings: tuple[str, ...]
    survey: Survey
    live: tuple[str, ...]
    expense: Expense
    host: tuple[HostFinding, ...]
    layouts: tuple[LayoutRow, ...] = ()
    by_name: bool = False
    """The model's files are not here: its shape was told from its name."""


def plan(
    study: Annotated[Path, typer.Argument(help="The study file.", show_default=False)],
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key: --set hardware.card=h100.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Show memory, what is refused and why, restarts and expected hours, before anything is started."""
    made = make_plan(open_study(study, list(setting or [])), read_gpus())
    if as_json:
        typer.echo(json.dumps(plan_json(made), indent=1))
    else:
        print_plan(made, terminal())


def make_plan(study: Study, host: GpuHost) -> StudyPlan:
    """Compose the plan; starts nothing and writes nothing.

    Raises:
        SpecError: study, space or model are wrong.
    """
    spec = study.spec
    made = frame(study, host, guess=True)
    preflight, space, baseline = made.preflight, made.space, made.baseline
    gpus = preflight.gpus if preflight.gpus is not None else 1
    live = _live(study)
    gpu_count = 0 if preflight.gpu is not None and preflight.gpu.cpu else gpus
    return StudyPlan(
        study=study,
        preflight=preflight,
        baseline=baseline,
        budget=preflight.budget(baseline),
        refused=preflight.refusals(baseline),
        warnings=warnings(baseline, bundled_table()),
        survey=survey(space, made.base, preflight, live, seed=spec.search.seed),
        live=tuple(sorted(live & space.by_name.keys())),
        expense=expense(
            spec, _seconds(study), gpus=gpu_count, live=bool(live & space.by_name.keys()), rounds=LEAST_ROUNDS
        ),
        host=() if spec.engine.kind in ("simulated", "endpoint") else check_host(read_host(), ranks=gpus),
        layouts=_layouts(study, made),
        by_name=made.facts is not None and model_facts(spec) is None,
    )


def _layouts(study: Study, made: StudyFrame) -> tuple[LayoutRow, ...]:
    found = space_candidates(study.spec.space, made.context, beside=study.path.parent)
    return layout_rows(found, made.space, made.baseline, made.context, made.preflight)


def _live(study: Study) -> frozenset[str]:
    """Settings that need no restart; none where the engine is not installed here, which a plan does not need."""
    try:
        engine = create_engine(study.spec, live=SharedFileFactory(), base=study.path.parent)
    except EnvironmentFault:
        return frozenset()
    return engine.live_settings if study.spec.engine.live else frozenset()


def _seconds(study: Study) -> TrialSeconds:
    """The study's own trials where it has run before, else usual figures."""
    prior = prior_seconds(study.spec)
    records = _history(study)
    if not any(record.restarted and record.outcome.kind == "measured" for record in records):
        return prior
    learnt = CostModel.learnt(records, CostModel(prior.start, prior.compile, prior.live, prior.measure))
    return TrialSeconds(learnt.start, learnt.compile, learnt.live, learnt.measure, "this study's own trials")


def _history(study: Study) -> tuple[TrialRecord, ...]:
    try:
        store = study.existing_store()
    except AutotuneError:
        return ()
    try:
        return tuple(store.history())
    finally:
        store.close()


# -- printing ----------------------------------------------------------------------------------------------------------


def print_plan(made: StudyPlan, console: Console) -> None:
    """The plan for people."""
    spec = made.study.spec
    console.print(Text(f"study {spec.name}: {spec.model}", style="bold"))
    _print_budget(made, console)
    _print_baseline(made, console)
    _print_survey(made.survey, console)
    print_layouts(made.layouts, console, shared=spec.hardware.shared)
    _print_expense(made, console)
    for finding in made.host:
        console.print(Text(f"{finding.severity}: {finding.text} – {finding.fix}", style="yellow"))


def _print_budget(made: StudyPlan, console: Console) -> None:
    budget, preflight = made.budget, made.preflight
    if budget is None:
        what, fix = (
            (f"{made.study.spec.model}'s config.json", f"hf download {made.study.spec.model} config.json")
            if preflight.facts is None
            else ("the card", "say which, such as --set hardware.card=h100")
        )
        told = f"memory: unknown, because {what} is not at hand; only rules are checked"
        console.print(Text(f"{told}\n  {fix}", style="yellow"), soft_wrap=True)
        return
    name = "the host" if budget.gpu.cpu else (budget.gpu.name or "a GPU")
    console.print(Text(f"\nmemory of {name} with the baseline", style="bold"))
    if made.by_name:
        console.print(Text("the model's files are not here: its shape is taken from its name", style="yellow"))
    table = Table(show_edge=False, header_style="dim")
    table.add_column("what")
    table.add_column("GiB", justify="right")
    for row, size in budget.rows:
        table.add_row(row, f"{size / _GIB:.2f}")
    console.print(table)
    largest = ", ".join(f"{seqs:,} x {length:,}" for seqs, length in budget.largest) or "not one"
    lines = [
        f"KV cache: {budget.kv_cache_tokens:,} tokens, {budget.full_requests:.1f} requests of full length",
        f"largest sequences x tokens that fit: {largest}",
        f"limited by: {budget.limiting}",
        _trust(made.preflight, budget),
    ]
    console.print(Text("\n".join(lines)))


def _trust(preflight: StudyPreflight, budget: MemoryBudget) -> str:
    if not budget.starts:
        return "from formulas; the first real start calibrates them"
    errors = ", ".join(f"{error:+.2%}" for error in preflight.errors[-4:])
    return f"calibrated by {budget.starts} starts; predicted KV tokens were off by {errors or 'unknown'}"


def _print_baseline(made: StudyPlan, console: Console) -> None:
    for refused in made.refused:
        text = f"the baseline cannot start: {refused.reason}. {refused.advice.text}"
        console.print(Text(text, style="bold red"))
    for sentence in made.warnings:
        console.print(Text(f"warning: {sentence}", style="yellow"))


def _print_survey(found: Survey, console: Console) -> None:
    how = f"a sample of {found.looked_at:,} of at most {found.size:,}" if found.sampled else f"all {found.looked_at:,}"
    console.print(Text(f"\nspace ({how} configurations)", style="bold"))
    table = Table(show_edge=False, header_style="dim")
    for name in ("what", "count", "share", "for example", "what helps"):
        table.add_column(name, justify="right" if name in ("count", "share") else "left")
    rows = [("can be tried", found.admitted, "", "")]
    rows += [("against the space's relations", found.ruled_out, "", "")]
    rows += [(f"refused: {g.cause}", g.count, g.example, g.advice) for g in found.refused]
    for what, count, example, advice in rows:
        table.add_row(Text(what), f"{count:,}", f"{found.share(count):.1%}", Text(example), Text(advice))
    console.print(table)
    least = "at least " if found.sampled else ""
    console.print(Text(f"restart groups: {least}{found.restart_groups:,}"))


def _print_expense(made: StudyPlan, console: Console) -> None:
    cost = made.expense
    parts = cost.per_trial
    live = f"; changed live: {', '.join(made.live)}" if made.live else ""
    limit = f"; its search ends after {duration_text(cost.limit)}" if cost.limit is not None and cost.cut else ""
    console.print(Text("\ncost", style="bold"))
    lines = [
        f"{cost.trials} trials and {cost.confirmations} starts of the confirmation{live}",
        f"a start {parts.start:.0f} s, a compilation {parts.compile:.0f} s, a measurement {parts.measure:.0f} s "
        f"({parts.source})",
        f"expected: {duration_text(cost.seconds)}{limit}",
    ]
    if cost.neighbours:
        lines.append(
            f"of it {duration_text(cost.neighbours)} to see whether trials disturb each other: the baseline alone and "
            f"beside the others, {LEAST_ROUNDS} to {MOST_ROUNDS} rounds; again with half as many places where they do"
        )
    if made.preflight.gpu is None or not made.preflight.gpu.cpu:
        simulated = " (simulated)" if made.study.spec.engine.kind == "simulated" else ""
        lines.append(f"GPU hours: {cost.gpu_hours:.2f}{simulated}")
    console.print(Text("\n".join(lines)))


def plan_json(made: StudyPlan) -> dict[str, object]:
    """The plan for machines; sizes in bytes, durations in seconds."""
    budget, found, cost = made.budget, made.survey, made.expense
    memory = None
    if budget is not None:
        memory = {
            "rows": [{"name": name, "bytes": round(size)} for name, size in budget.rows],
            "kv_cache_tokens": budget.kv_cache_tokens,
            "largest": [{"max_num_seqs": seqs, "tokens": length} for seqs, length in budget.largest],
            "limiting": budget.limiting,
            "starts": budget.starts,
            "errors": list(made.preflight.errors),
        }
    return {
        "study": made.study.spec.name,
        "memory": memory,
        "baseline_refused": [{"cause": one.cause, "reason": one.reason} for one in made.refused],
        "warnings": list(made.warnings),
        "space": {
            "size": found.size,
            "looked_at": found.looked_at,
            "sampled": found.sampled,
            "ruled_out": found.ruled_out,
            "admitted": found.admitted,
            "restart_groups": found.restart_groups,
            "refused": [
                {"cause": g.cause, "count": g.count, "share": found.share(g.count), "example": g.example,
                 "advice": g.advice}
                for g in found.refused
            ],
        },
        "layouts": [asdict(row) for row in made.layouts],
        "cost": {
            "trials": cost.trials,
            "confirmations": cost.confirmations,
            "seconds": cost.seconds,
            "neighbour_check_seconds": cost.neighbours,
            "limit_seconds": cost.limit,
            "gpu_hours": cost.gpu_hours,
            "source": cost.per_trial.source,
        },
        "host": [{"id": one.id, "severity": one.severity, "text": one.text, "fix": one.fix} for one in made.host],
    }  # fmt: skip
