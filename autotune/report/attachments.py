"""What the dashboard shows beside a trial: a note, the engine's log, the load report, a plot of the load."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from autotune.engine.failures import read_log
from autotune.engine.redaction import redact
from autotune.load.report import LoadReport
from autotune.outcome import Measured, TrialRecord
from autotune.report.loadplot import load_plot, read_samples
from autotune.report.markdown import plain
from autotune.report.payload import SHOWN, exact
from autotune.report.trials import trial_folder
from autotune.report.values import ReportContent, Standing, TrialView
from autotune.report.wording import duration_text, figure_text, metric_title, metric_unit
from autotune.search.board import Attached, File

LONGEST = 90
"""Characters of an attribute; the dashboard does not break lines."""
GOOD = (Standing.FRONT, Standing.FEASIBLE)
WORDS = {
    Standing.FRONT: "on the feasible front",
    Standing.FEASIBLE: "feasible, but another configuration is better",
    Standing.LIMIT: "**not usable**: breaks a latency limit",
    Standing.QUALITY: "**not usable**: the answers fail the quality gate",
    Standing.INFEASIBLE: "**not usable**: it could not serve; the plots show the worst values measured in its place",
    Standing.REFUSED: "**not usable**: refused before a start; the plots show the worst values measured in its place",
    Standing.BROKEN: "a fault of the machine; nothing was learnt",
}


def attach(record: TrialRecord, content: ReportContent, home: Path | None) -> Attached:
    """Note and files of one trial; `home` is the study's folder."""
    view = next(trial for trial in content.trials if trial.number == record.number)
    return Attached(
        note=trial_note(view, content),
        attributes=tuple(_attributes(view, content)),
        files=tuple(_files(record, trial_folder(record, home))),
    )


def trial_note(trial: TrialView, content: ReportContent) -> str:
    """One trial in Markdown."""
    role = "recommended, " if trial.number == content.chosen else ""
    role = "the baseline, " if trial.number == content.baseline else role
    lines = [
        f"# Trial {trial.number}",
        f"{role}{WORDS[trial.standing]}." + (" Simulated." if content.simulated else ""),
    ]
    if trial.reason:
        lines.append(f"> {plain(trial.reason)}")
    lines += [
        f"- {column.title}: {figure_text(column.label.partition('@')[0], estimate)}"
        for column, estimate in zip(content.columns, trial.objectives, strict=False)
    ]
    lines.append(f"Origin: {trial.origin}; it took {duration_text(trial.seconds)}.")
    if trial.note:
        lines.append(plain(trial.note))
    # One setting a line: the dashboard does not break long lines.
    changes = "\n".join(f"- {plain(word)}" for word in trial.changes.split(" "))
    return "\n\n".join([*lines, "Against the baseline:", changes if "=" in changes else plain(trial.changes)])


def study_note(content: ReportContent) -> str:
    """The study in Markdown: what may be chosen, and what the dashboard's plots do not know."""
    members = [trial for trial in content.trials if trial.standing is Standing.FRONT and not trial.repeat]
    head = ["Trial", *(named(one.title, one.unit) for one in content.columns), "Changes"]
    rows = [
        [str(one.number), *(figure_text("", estimate) for estimate in one.objectives), plain(one.changes)]
        for one in members
    ]
    limits = ", ".join(f"{metric_title(key)} up to {limit:g} ms" for key, limit in content.limits)
    limits = f"of this study: {limits}; quality" if limits else "and no quality gate"
    parts = [
        f"# {plain(content.name)}",
        "**Simulated: no GPU produced these figures.**" if content.simulated else "",
        *(plain(sentence) for sentence in content.sentences),
        *(plain(sentence) for sentence in content.unproven),
        "## Choose from here: the feasible front",
        _table(head, rows) if rows else "No configuration holds all limits.",
        "## Read the plots with care",
        f"Most plots of the dashboard know no limits ({limits}). Trials that could not serve are drawn with the worst "
        "values that were measured, so that they never look good. Trials that were measured but break a latency limit "
        "or fail the quality gate keep their real values: the Pareto front greys them, and the attribute `usable` of a "
        "trial says `no`. A trial of origin `confirm` repeats another one.",
        "What you write or delete here changes nothing in the study, and is gone when the dashboard ends: the view is "
        "made from the study's records.",
    ]
    return "\n\n".join(part for part in parts if part)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)])


def _attributes(trial: TrialView, content: ReportContent) -> Iterator[tuple[str, str | float]]:
    """Names that can be read, with their units; numbers stay numbers, so that they can be plotted."""
    yield "usable", "yes" if trial.standing in GOOD else f"no: {trial.standing}"
    yield "against the baseline", trial.changes if len(trial.changes) <= LONGEST else trial.changes[:LONGEST] + "…"
    yield "origin", trial.origin
    if trial.number in (content.chosen, content.baseline):
        yield "role", "baseline" if trial.number == content.baseline else "recommended"
    if trial.reason:
        yield "reason", trial.reason if len(trial.reason) <= LONGEST else trial.reason[:LONGEST] + "…"
    yield "seconds", round(trial.seconds, 1)
    if content.simulated:
        yield "simulated", "yes"
    for level in trial.levels:
        shown = {key: estimate for key, estimate in level.figures if key in SHOWN}
        for key, estimate in shown.items():
            yield named(f"{metric_title(key)} at {level.name}", metric_unit(key)), float(f"{estimate.value:.5g}")
        for key, value in level.engine:
            yield f"engine: {key.replace('_', ' ')} at {level.name}", float(f"{value:.5g}")


def named(title: str, unit: str) -> str:
    """A title with its unit in brackets, where it has one."""
    return f"{title} ({unit})" if unit else title


def _files(record: TrialRecord, folder: Path | None) -> Iterator[File]:
    if folder is not None and (folder / "engine.log").is_file():
        yield File("engine.log", "text/plain; charset=utf-8", partial(_log, folder / "engine.log"))
    if not isinstance(record.outcome, Measured):
        return
    yield File("load-report.json", "application/json", partial(_json, record.outcome.load))
    for level in record.outcome.load.levels:
        if level.samples is not None and folder is not None and (folder / level.samples.name).is_file():
            title = f"Trial {record.number}, load {level.level}"
            plot = partial(_plot, folder / level.samples.name, title)
            yield File(f"{level.samples.stem}.svg", "image/svg+xml", plot)


def _log(file: Path) -> bytes:
    """The log without secrets."""
    try:
        return "\n".join(redact(line) for line in read_log(file)).encode()
    except OSError as error:
        return f"the log cannot be read: {error.strerror}".encode()


def _json(load: LoadReport) -> bytes:
    return json.dumps(exact(load), indent=1, ensure_ascii=False).encode()


def _plot(file: Path, title: str) -> bytes:
    samples = read_samples(file)
    return load_plot(samples, title).encode() if samples is not None else b""
