"""Gathers a report from a study: reads records, says in three sentences what they mean."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from autotune import __version__
from autotune.engine.cpu_setup import model_path
from autotune.engine.redaction import redact
from autotune.errors import SpecError
from autotune.host.fingerprint import differences
from autotune.load.agreement import BUSY, host_bound
from autotune.outcome import Infeasible, Measured, TrialRecord
from autotune.report.comparison import Verdict, change_rows, columns_of, gain_views, in_words, left_out, verdict_of
from autotune.report.effects import effects_of
from autotune.report.failures import failure_views, refused_views
from autotune.report.trials import quality_views, trial_views
from autotune.report.unproven import unproven
from autotune.report.values import ReportContent
from autotune.report.wording import count_text, duration_text, number_text
from autotune.result import ENDED, FINAL, Recommendation, recommendation_from_json
from autotune.search.account import ACCOUNT, SpaceAccount
from autotune.search.drift import drift_of
from autotune.search.objectives import Objectives, searched
from autotune.search.restart import efficiency
from autotune.space.argv import to_argv
from autotune.space.catalogue import find_space, list_spaces
from autotune.space.config import EngineConfig
from autotune.space.defaults import without_spelt_out
from autotune.space.source import read_source
from autotune.spec.resolved import resolved_yaml
from autotune.spec.space import SpaceSpec
from autotune.spec.study import StudySpec
from autotune.study import Study

NAMED = 12
"""So many trials are named in a note."""
STAGES = ("start", "warmup", "measure", "quality", "stop", "overhead")


def read_content(study: Study) -> ReportContent:
    """The report of a study that has been run.

    Raises:
        SpecError: the study has no results.
        StoreError: its database cannot be read.
    """
    store = study.existing_store()
    try:
        records = store.history()
        study = study.as_measured(store)
        recommendation = store.read(*FINAL, recommendation_from_json)
        account = store.read(*ACCOUNT, SpaceAccount.from_json)
        ended = store.get(*ENDED) or ""
    finally:
        store.close()
    spec = _self_contained(study.spec, study.path)
    return gather(spec, records, recommendation, path=study.path, home=study.folder, account=account, ended=ended)


def _self_contained(spec: StudySpec, path: Path) -> StudySpec:
    """The study with its space inside where that is a file of the user's own: so it can be reproduced elsewhere."""
    shipped = {item.name for item in list_spaces() if item.shipped}
    if not isinstance(spec.space, str) or spec.space in shipped:
        return spec
    try:
        space = read_source(find_space(spec.space, path.parent)).validated(SpaceSpec)
    except SpecError:  # it is gone; the report says what the file says
        return spec
    return spec.model_copy(update={"space": space})


def gather(
    spec: StudySpec,
    records: Sequence[TrialRecord],
    recommendation: Recommendation | None = None,
    *,
    path: Path = Path("study.yaml"),
    home: Path | None = None,
    now: float | None = None,
    account: SpaceAccount | None = None,
    ended: str = "",
) -> ReportContent:
    """The report of `records`.

    Args:
        spec: the study.
        records: its trials.
        recommendation: what the study ended with, or None while it runs.
        path: the study file, for its name.
        home: the study's folder, for the logs; None: where the records say.
        now: the time it is written at in Unix seconds; default: the present.
        account: what became of every configuration of the space, where the study has counted it.
        ended: why the search ended, where it has.
    """
    records = sorted(records, key=lambda record: record.number)
    objectives = Objectives.of(spec)
    verdict = verdict_of(records, objectives, recommendation)
    today = recommendation.baseline if recommendation else verdict.baseline.config if verdict.baseline else _given(spec)
    effects = effects_of(records, objectives)
    simulated = is_simulated(spec, records)
    gains = gain_views(verdict, objectives)
    changes = change_rows(verdict, today, objectives)
    return ReportContent(
        name=spec.name,
        model=spec.model,
        written=time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(now)),
        version=__version__,
        simulated=simulated,
        sentences=(
            _what_ran(spec, records, simulated),
            _claim(verdict, objectives),
            _evidence(verdict, objectives, records),
        ),
        columns=columns_of(objectives),
        limits=tuple((slo.key, slo.limit_ms) for slo in objectives.slos),
        gains=gains,
        changes=changes,
        chosen=verdict.chosen.number if verdict.chosen else None,
        baseline=verdict.baseline.number if verdict.baseline else None,
        trials=trial_views(records, objectives, today),
        settings=effects.settings,
        fits=effects.fits,
        spending=_spending(records),
        efficiency=_efficiency(records),
        failures=failure_views(records, objectives, home),
        account=account.sentence if account else "",
        refused=refused_views(account),
        quality=quality_views(records, today),
        facts=_facts(spec, records),
        notes=_notes(spec, records, objectives, verdict, ended),
        command=_command(spec, verdict.config),
        study_file=redact(resolved_yaml(spec)),
        path=path.name,
        left_out=left_out(verdict, changes, objectives),
        unproven=tuple(redact(text) for text in unproven(verdict, records, objectives, spec)),
    )


def _given(spec: StudySpec) -> EngineConfig:
    return EngineConfig.of(dict(spec.engine.args)).merged(dict(spec.baseline.args), spec.baseline.env)


def is_simulated(spec: StudySpec, records: Sequence[TrialRecord]) -> bool:
    """Figures come from a simulated engine, by the study file or by what any engine said of itself."""
    said = any(record.resolved is not None and "simulated" in record.resolved.version for record in records)
    return spec.engine.kind == "simulated" or said


# -- three sentences --------------------------------------------------------------------------------------------------


def _what_ran(spec: StudySpec, records: Sequence[TrialRecord], simulated: bool) -> str:
    tried = searched(records)
    measured = sum(isinstance(record.outcome, Measured) for record in tried)
    infeasible = sum(isinstance(record.outcome, Infeasible) for record in tried)
    broken = sum(record.outcome.kind == "broken" for record in records)
    engine = "a simulated engine" if simulated else "vLLM"
    spent = efficiency(records)
    text = f"{count_text(measured, 'configuration')} of {spec.model} on {engine} {_was(measured)} measured"
    if infeasible:
        text += f" and {count_text(infeasible, 'more', 'more')} could not serve"
    if broken:
        text += f"; {count_text(broken, 'trial')} broke and taught nothing"
    kind = " of GPU time" if any(record.gpus for record in records) else ""
    return f"{text}. All of it took {duration_text(spent.gpu_hours * 3600)}{kind}."


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def _claim(verdict: Verdict, objectives: Objectives) -> str:
    if verdict.config is None and verdict.baseline is None:
        return "Nothing can be recommended: the baseline was not measured yet."
    if verdict.config is None:
        return "Nothing can be recommended: " + verdict.sentence.rstrip(".") + "."
    sentence = in_words(verdict.sentence.rstrip("."), objectives)
    where = f"trial {verdict.chosen.number}" if verdict.chosen else "the recommended configuration"
    if verdict.final and _keeps(verdict):
        return f"Keep what you run today (the baseline): {sentence}."
    if verdict.final and where not in sentence:
        sentence = f"{where}: {sentence}"
    return sentence[:1].upper() + sentence[1:] + "."


def _evidence(verdict: Verdict, objectives: Objectives, records: Sequence[TrialRecord]) -> str:
    rounds = sum(1 for one in records if one.proposal.origin == "confirm" and _same(one.config, verdict.config))
    if verdict.proven:
        text = _proof(verdict, records, rounds)
    elif rounds and not verdict.final:
        text = f"Its confirmation is under way: {count_text(rounds, 'fresh start')} of it measured so far"
    elif rounds and _keeps(verdict):
        others = {one.config.hash for one in records if one.proposal.origin == "confirm"} - {
            verdict.chosen.config.hash if verdict.chosen else ""
        }
        text = f"{count_text(len(others), 'other configuration')} {_was(len(others))} measured again beside it in "
        text += f"{count_text(rounds, 'round')} of fresh starts, which did not prove a gain"
    elif rounds:
        text = f"It was measured again in {count_text(rounds, 'round')} of fresh starts, which did not prove a gain"
    elif verdict.chosen is None:
        text = "There is nothing to confirm"
    elif verdict.final and _keeps(verdict):
        text = "The figures below are those of the search"
    else:
        text = "It was not confirmed on fresh starts yet, so the figures below are those of the search"
    if verdict.quality:
        return f"{text}; {verdict.quality.rstrip('.')}."
    if objectives.slos and verdict.chosen is not None and objectives.feasible(verdict.chosen):
        return f"{text}; every latency limit holds."
    return text + "."


def _proof(verdict: Verdict, records: Sequence[TrialRecord], rounds: int) -> str:
    """What was confirmed: the winner, which is the recommendation, or that with settings that make no difference."""
    said = "of fresh starts interleaved with the baseline"
    starts = verdict.proofs[1] if verdict.proofs is not None else ()
    if not starts or _same(starts[0].config, verdict.config):
        return f"This was confirmed in {count_text(rounds, 'round')} {said}"
    winner = next(one.number for one in records if one.config.hash == starts[0].config.hash)
    text = f"The winner, trial {winner}, was confirmed in {count_text(len(starts), 'round')} {said}"
    return f"{text}; what it changed without effect is left out here"


def _keeps(verdict: Verdict) -> bool:
    """What runs today stays."""
    chosen, baseline = verdict.chosen, verdict.baseline
    return chosen is not None and baseline is not None and chosen.number == baseline.number


def _same(config: EngineConfig, other: EngineConfig | None) -> bool:
    return other is not None and without_spelt_out(config) == without_spelt_out(other)


# -- facts ------------------------------------------------------------------------------------------------------------


def _spending(records: Sequence[TrialRecord]) -> tuple[tuple[str, float], ...]:
    """GPU seconds by stage; all time of trials that gave no measurement stands under `failed`."""
    sums = dict.fromkeys((*STAGES, "failed"), 0.0)
    for record in records:
        weight = max(record.gpus, 1)
        if not isinstance(record.outcome, Measured):
            sums["failed"] += record.seconds * weight
            continue
        for name, seconds in record.stage_seconds:
            sums[name if name in sums else "overhead"] += seconds * weight
    return tuple((name, seconds) for name, seconds in sums.items() if seconds > 0)


def _efficiency(records: Sequence[TrialRecord]) -> tuple[tuple[str, str], ...]:
    found = efficiency(records)
    return (
        ("GPU time", duration_text(found.gpu_hours * 3600)),
        ("share of it under load, warm-up included", f"{100 * found.measuring_share:.0f} %"),
        ("measurements per GPU hour, repeats included", number_text(found.configurations_per_gpu_hour)),
        ("load levels measured per GPU hour", number_text(found.points_per_gpu_hour)),
        ("engine starts", str(found.restarts)),
        ("trials on an engine that already ran", str(found.live_changes)),
    )


def _facts(spec: StudySpec, records: Sequence[TrialRecord]) -> tuple[tuple[str, str], ...]:
    versions = {record.resolved.version for record in records if record.resolved and record.resolved.version}
    plans = {
        level.plan_hash
        for record in records
        if isinstance(record.outcome, Measured)
        for level in record.outcome.load.levels
        if level.plan_hash
    }
    facts = [("engine kind", spec.engine.kind), ("engine version", ", ".join(sorted(versions)))]
    facts += [("lengths and arrivals (hash)", ", ".join(sorted(plan[:12] for plan in plans)))] if len(plans) < 9 else []
    environment = next((record.environment for record in reversed(records) if record.environment), ())
    known = {name for name, _ in facts}
    facts += [(name, redact(value)) for name, value in environment if name not in known]
    return tuple((name, value) for name, value in facts if value)


def _notes(
    spec: StudySpec, records: Sequence[TrialRecord], objectives: Objectives, verdict: Verdict, ended: str
) -> tuple[str, ...]:
    notes = [f"The search ended because {ended}."] if ended and verdict.final else []
    drift = drift_of(records, objectives)
    if drift.verdict != "steady":
        notes.append(f"The machine drifted: {drift.sentence}.")
    hosts = [record.environment for record in records if record.environment]
    if hosts and (changed := differences(hosts[0], hosts[-1])):
        notes.append("The machine changed during the study: " + "; ".join(changed) + ".")
    for text, numbers in _warned(records).items():
        notes.append(f"{text}: {_trials(numbers)}.")
    if waited := _waited(verdict):
        notes.append(waited)
    if not verdict.final:
        notes.append("The study has not ended; this is what it knows so far.")
    if not spec.quality.enabled:
        notes.append("The quality gate is off: nothing is known about the answers.")
    return tuple(redact(note) for note in notes)


def _warned(records: Sequence[TrialRecord]) -> dict[str, list[int]]:
    """What made trials slower than they could be here, such as a slow link, and their numbers."""
    found: dict[str, list[int]] = {}
    for record in records:
        for text in record.resolved.warnings if record.resolved else ():
            found.setdefault(text, []).append(record.number)
    return found


def _waited(verdict: Verdict) -> str:
    """Where the GPUs waited for the host with what is recommended: its gain may be another one elsewhere."""
    if verdict.chosen is None or _keeps(verdict):
        return ""
    starts = verdict.proofs[1] if verdict.proofs is not None else (verdict.chosen,)
    loads = [one.outcome.load.levels for one in starts if isinstance(one.outcome, Measured)]
    idle = []
    for levels in zip(*loads, strict=False):  # a start may have been stopped early
        busy = fmean(dict(one.engine).get(BUSY, 0.0) for one in levels)
        if host_bound(levels[0].level, {BUSY: busy}):
            idle.append(f"{busy:.0f}% at {levels[0].level}")
    if not idle:
        return ""
    with_what, figures = ("what is recommended", "Its gain") if verdict.proven else (
        f"trial {verdict.chosen.number}", "What it measured")  # fmt: skip
    return (
        f"With {with_what} the GPUs waited for their host: they were busy for {', '.join(idle)}. {figures} "
        "holds for this host; a faster one, larger CUDA graphs or more API servers (--api-server-count) may give more."
    )


def _trials(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:NAMED]))
    more = f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else ""
    return f"trial{'s' if len(numbers) > 1 else ''} {shown}{more}"


def _command(spec: StudySpec, config: EngineConfig | None) -> str:
    if config is None:
        return ""
    env = [f"{name}={shlex.quote(value)}" for name, value in config.env]
    words = [shlex.quote(word) for word in ("vllm", "serve", model_path(spec.model), *to_argv(config))]
    return redact(" ".join([*env, *words]))
