"""Chooses the configuration to export from a study, and gathers its evidence."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.adopt.tables import table_of_engine
from autotune.engine.cpu_setup import model_path
from autotune.errors import SpecError
from autotune.export.evidence import SHOWN
from autotune.export.facts import label_of, release_of
from autotune.export.secrets import without_secrets
from autotune.export.values import Evidence, ExportInput, Measure
from autotune.load.report import Estimate, Level
from autotune.outcome import Measured, TrialRecord
from autotune.quality.report import QualityVerdict
from autotune.quality.wording import evidence
from autotune.report.proof import over_starts, proof_of
from autotune.report.wording import outcome_text
from autotune.result import FINAL, Recommendation, recommendation_from_json
from autotune.search.front import baseline_of, front_of, knee_of
from autotune.search.objectives import Objectives
from autotune.space.arguments import bundled_table
from autotune.space.config import EngineConfig
from autotune.space.defaults import STABLE
from autotune.space.renames import parse_version, translate
from autotune.study import Study

PICKS = ("recommendation", "best-throughput", "lowest-ttft", "knee", "trial:N")
_BY_METRIC = {"best-throughput": ("output_throughput", True), "lowest-ttft": ("ttft_p95_ms", False)}


@dataclass(frozen=True, slots=True)
class _Choice:
    config: EngineConfig
    record: TrialRecord | None
    claim: str
    gains: tuple[tuple[str, float, float, float], ...] = ()
    quality: str = ""
    effects: tuple[tuple[str, str], ...] = ()


def read_export(study: Study, pick: str = "recommendation", version: str | None = None) -> ExportInput:
    """What `pick` names in a study that has been run.

    Args:
        study: the study.
        pick: one of `PICKS`.
        version: vLLM that will read the files. Default: the one that was measured.

    Raises:
        SpecError: the study has no results, or nothing in it is what `pick` asks for.
        StoreError: its database cannot be read.
    """
    store = study.existing_store()
    try:
        records = store.history()
        study = study.as_measured(store)
        final = store.read(*FINAL, recommendation_from_json)
    finally:
        store.close()
    return gather(study, records, final, pick, version)


def gather(
    study: Study,
    records: Sequence[TrialRecord],
    recommendation: Recommendation | None,
    pick: str = "recommendation",
    version: str | None = None,
) -> ExportInput:
    """The same from records that are already read.

    Raises:
        SpecError: nothing is what `pick` asks for.
    """
    spec, objectives = study.spec, Objectives.of(study.spec)
    if spec.topology.split:
        raise SpecError(
            "a trial of this study is several engines behind a router, and an export describes one",
            file=study.path, key="topology",
            hint=f"`autotune show {study.path} --trial N` prints the command of each engine and of the router",
        )  # fmt: skip
    choice = _choose(study, records, objectives, recommendation, pick)
    today = baseline_of(records)
    baseline = today.config if today is not None else EngineConfig()
    evidence = _evidence(study, records, objectives, choice)
    measured = evidence.vllm_version
    target = release_of(version or measured)
    # A point of a space spells out defaults that nobody asked for; those of the baseline are somebody's wish.
    asked = tuple(item for item in choice.config.args if item in baseline.args or STABLE.get(item[0]) != item[1])
    config = EngineConfig(asked, tuple(sorted({**spec.engine.env, **dict(choice.config.env)}.items())))
    config, renamed = translate(config, target) if target else (config, ())
    config, hidden = without_secrets(config)
    notes = (*renamed, *hidden)
    found = table_of_engine(spec.engine).table
    table = found if not target or parse_version(found.version) == parse_version(target) else bundled_table()
    if version and target != release_of(measured):
        notes = (f"measured with vLLM {measured or 'unknown'}, written for {version}; measure again there", *notes)
    return ExportInput(
        name=label_of(spec.name), model=model_path(spec.model), config=config, baseline=baseline, evidence=evidence,
        revision=spec.revision, ready_s=_ready_seconds(records, choice), notes=notes, table=table,
    )  # fmt: skip


def _choose(
    study: Study, records: Sequence[TrialRecord], objectives: Objectives, final: Recommendation | None, pick: str
) -> _Choice:
    if pick == "recommendation":
        return _recommended(study, records, final)
    trial = re.fullmatch(r"trial:(\d+)", pick)
    if trial:
        return _trial(study, records, int(trial.group(1)))
    if pick not in (*_BY_METRIC, "knee"):
        raise SpecError(f"--pick {pick!r} is unknown", hint=f"one of {', '.join(PICKS)}, such as trial:7")
    front = front_of(records, objectives)
    if not front:
        raise SpecError("no configuration held all limits, so there is no front to pick from", file=study.path,
                        hint="pick a trial by its number (trial:N); `autotune show` lists them")  # fmt: skip
    if pick == "knee":
        found = knee_of(front, objectives)
        if found is None:
            raise SpecError("a front of fewer than three configurations or of one objective has no knee",
                            file=study.path, hint="use --pick recommendation or best-throughput")  # fmt: skip
        return _Choice(found.config, found, "the knee of the front; not compared with the baseline by fresh starts")
    metric, maximize = _BY_METRIC[pick]
    return _extreme(study, front, metric, maximize)


def _recommended(study: Study, records: Sequence[TrialRecord], final: Recommendation | None) -> _Choice:
    if final is None:
        raise SpecError("the study has no recommendation yet", file=study.path,
                        hint=f"let it end: autotune run {study.path}; or use --pick trial:N")  # fmt: skip
    record = next((r for r in records if r.number == final.trial), None)
    claim = final.sentence if final.proven else f"keep what you run today: {final.sentence}"
    return _Choice(final.config, record, claim, final.gains, final.quality, final.effects)


def _trial(study: Study, records: Sequence[TrialRecord], number: int) -> _Choice:
    record = next((r for r in records if r.number == number), None)
    if record is None:
        numbers = f"0 to {records[-1].number}" if records else "none yet"
        raise SpecError(f"there is no trial {number}", file=study.path, hint=f"trials of this study: {numbers}")
    return _Choice(record.config, record, "picked by its number; not compared with the baseline by fresh starts")


def _extreme(study: Study, front: Sequence[TrialRecord], metric: str, maximize: bool) -> _Choice:
    """The member of the front with the best figure at any one level."""
    ranked = [(value, record) for record in front if (value := _best_figure(record, metric, maximize)) is not None]
    if not ranked:
        raise SpecError(f"no trial of the front has {metric}", file=study.path, hint="use --pick trial:N")
    pick = max if maximize else min
    _, record = pick(ranked, key=lambda item: item[0])
    word = "highest" if maximize else "lowest"
    return _Choice(record.config, record, f"the {word} {metric} of the front; not confirmed by fresh starts")


def _best_figure(record: TrialRecord, metric: str, maximize: bool) -> float | None:
    if not isinstance(record.outcome, Measured):
        return None
    found = [e.value for level in record.outcome.load.levels if (e := level.estimate(metric)) is not None]
    return (max(found) if maximize else min(found)) if found else None


def _evidence(study: Study, records: Sequence[TrialRecord], objectives: Objectives, choice: _Choice) -> Evidence:
    record = choice.record
    same = [
        r
        for r in records
        if record is not None and r.config.hash == record.config.hash and r.outcome.kind == "measured"
    ]
    proof = proof_of(records, record.config) if record is not None else ()
    measures = _measures(proof or (() if record is None else (record,)))
    version = record.resolved.version if record is not None and record.resolved is not None else ""
    simulated = study.spec.engine.kind == "simulated"
    numbers = tuple(r.number for r in same) or ((record.number,) if record is not None else ())
    day = time.strftime("%Y-%m-%d", time.gmtime(record.started_at)) if record is not None else ""
    return Evidence(
        study=study.spec.name, study_file=study.path.name, trials=numbers, claim=choice.claim, gains=choice.gains,
        effects=choice.effects, measures=measures, starts=len(proof), quality=choice.quality or _quality(record),
        vllm_version=version.partition("+")[0],
        hardware=_hardware(study, record), date=day, simulated=simulated, warnings=_warnings(record, objectives),
    )  # fmt: skip


def _measures(starts: Sequence[TrialRecord]) -> tuple[Measure, ...]:
    """The figures of one configuration's starts, level by level in the order of the load."""
    found: dict[tuple[Level, str], list[Estimate]] = {}
    for one in starts:
        for level in one.outcome.load.levels if isinstance(one.outcome, Measured) else ():
            for key in SHOWN:
                if (estimate := level.estimate(key)) is not None:
                    found.setdefault((level.level, key), []).append(estimate)
    return tuple(Measure(key, level, over_starts(estimates)) for (level, key), estimates in found.items())


def _quality(record: TrialRecord | None) -> str:
    if record is None or not isinstance(record.outcome, Measured) or record.outcome.quality is None:
        return ""
    return evidence(record.outcome.quality)


def _warnings(record: TrialRecord | None, objectives: Objectives) -> tuple[str, ...]:
    if record is None:
        return ("no trial measured exactly this configuration",)
    if not isinstance(record.outcome, Measured):
        return (f"trial {record.number} was not measured ({outcome_text(record.outcome)}): {record.outcome.reason}",)
    found = []
    quality = record.outcome.quality
    if quality is not None and quality.verdict == QualityVerdict.FAILED:
        found.append("this configuration fails the quality gate")
    broken = [
        name for name, value in zip(objectives.constraint_names, objectives.constraints(record), strict=True)
        if value > 0 and "slo" in name
    ]  # fmt: skip
    found += [f"the limit {name.partition('_slo_')[2]} does not hold" for name in broken]
    return tuple(found)


def _hardware(study: Study, record: TrialRecord | None) -> str:
    simulate = study.spec.engine.simulate
    if study.spec.engine.kind == "simulated" and simulate is not None:
        return f"a simulated {simulate.card.upper()}"
    facts = dict(record.environment) if record is not None else {}
    gpu, driver = facts.get("gpu", ""), facts.get("driver", "")
    if not gpu:
        return facts.get("cpu", "")
    return f"{facts.get('gpus', '1')} x {gpu}{f', driver {driver}' if driver else ''}"


def _ready_seconds(records: Sequence[TrialRecord], choice: _Choice) -> float:
    """The longest start that was seen, of this configuration where it was started, else of any."""
    starts = [
        (r.config.hash, seconds)
        for r in records
        for name, seconds in r.stage_seconds
        if name == "start" and r.restarted
    ]
    mine = [seconds for key, seconds in starts if key == choice.config.hash]
    return max(mine or [seconds for _, seconds in starts], default=0.0)


def renamed(recommendation: ExportInput, name: str) -> ExportInput:
    """The same under another deployment name."""
    return replace(recommendation, name=label_of(name))
