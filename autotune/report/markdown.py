"""The report as Markdown, for a pull request or a wiki."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autotune.report.values import GainView, ReportContent, Standing, TrialView
from autotune.report.wording import count_text, duration_text, figure_text, number_text, ratio_text

MOST_SETTINGS = 10


def markdown(content: ReportContent) -> str:
    """The whole report; tables in GitHub's dialect."""
    parts = [
        f"# {plain(content.name)}",
        f"{plain(content.model)}, written {content.written} by autotune {content.version}.",
        "**Simulated: an engine model produced every figure here, no GPU did.**" if content.simulated else "",
        *(plain(sentence) for sentence in content.sentences),
        "\n".join(f"- {plain(note)}" for note in content.notes),
        "## Recommendation against baseline",
        _gains(content),
        "\n".join(f"- {plain(text)}" for text in content.unproven),
        _changes(content),
        _fence(content.command),
        "## The front",
        _front(content),
        "## What mattered",
        _settings(content),
        "## Where the GPU time went",
        _table(("Stage", "GPU time"), ((name, duration_text(seconds)) for name, seconds in content.spending)),
        _table(("", ""), content.efficiency),
        "## Failures",
        _failures(content),
        plain(content.account),
        _refused(content),
        "## Quality of the answers",
        _quality(content),
        "## All trials",
        _trials(content.trials, content),
        "## Environment",
        _table(("", ""), content.facts),
        "## How to reproduce",
        f"Save this as `{content.path}`, install `vllm-autotune {content.version}`, run `autotune run {content.path}`.",
        _fence(content.study_file.rstrip(), "yaml"),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def plain(text: str) -> str:
    """Text that stays text inside Markdown and its tables: no markup, no line ends."""
    flat = " ".join(text.split())
    for mark, kept in (("\\", "\\\\"), ("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("`", "\\`"),
                       ("*", "\\*"), ("_", "\\_"), ("[", "\\["), ("]", "\\]"), ("!", "\\!"), ("#", "\\#")):  # fmt: skip
        flat = flat.replace(mark, kept)
    return flat


def _fence(text: str, language: str = "") -> str:
    if not text:
        return ""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = ["| " + " | ".join(plain(cell) for cell in row) + " |" for row in rows]
    if not body:
        return ""
    return "\n".join(["| " + " | ".join(head) + " |", "|" + " --- |" * len(head), *body])


def _gains(content: ReportContent) -> str:
    if content.kept:
        head: tuple[str, ...] = ("Objective", "What runs today")
    else:
        head = ("Objective", "Baseline", "Recommended", "Better by")
    table = _table(head, (_gain(row)[: len(head)] for row in content.gains))
    return f"{table}\n\n{plain(content.figures_note)}" if table else ""


def _gain(row: GainView) -> tuple[str, str, str, str]:
    key = row.column.label.partition("@")[0]
    better = ratio_text(row.ratio, row.low, row.high) if row.ratio is not None else "–"
    return (
        row.column.title,
        figure_text(key, row.baseline),
        figure_text(key, row.found),
        better if row.confirmed or row.ratio is None else f"{better} (not confirmed)",
    )


def _changes(content: ReportContent) -> str:
    rows = [(one.name, one.before, one.after, one.worth) for one in content.changes]
    if any(one.worth for one in content.changes):
        table = _table(("Setting", "Baseline", "Recommended", "What it is worth"), rows)
    else:
        table = _table(("Setting", "Baseline", "Recommended"), (row[:3] for row in rows))
    left_out = "\n".join(f"- {plain(text)}" for text in content.left_out)
    return "\n\n".join(part for part in (table, left_out) if part)


def _front(content: ReportContent) -> str:
    members = [trial for trial in content.trials if trial.standing is Standing.FRONT and not trial.repeat]
    return _trials(members, content) or "No configuration held all limits."


def _trials(trials: Iterable[TrialView], content: ReportContent) -> str:
    titles = [f"{column.title} ({column.unit})" if column.unit else column.title for column in content.columns]
    head = ("Trial", "Origin", "Outcome", *titles, "Took", "Against the baseline")
    return _table(head, (_trial(trial, content) for trial in trials))


def _trial(trial: TrialView, content: ReportContent) -> tuple[str, ...]:
    figures = [number_text(one.value) for one in trial.objectives] or ["–"] * len(content.columns)
    outcome = trial.outcome if not trial.objectives else str(trial.standing)
    return (str(trial.number), trial.origin, outcome, *figures, duration_text(trial.seconds), trial.changes)


def _settings(content: ReportContent) -> str:
    if not content.settings:
        return "Too few measured trials, or too little varied, to say what single settings do."
    head = ("Setting", *(column.title for column in content.columns))
    rows = (
        (setting.name, *(f"{share:.1%}" for share in setting.importance))
        for setting in content.settings[:MOST_SETTINGS]
    )
    text = "Share of each objective's variation that a setting explains, with all others in the same additive model."
    return f"{text}\n\n{_table(head, rows)}"


def _failures(content: ReportContent) -> str:
    if not content.failures:
        return "No trial failed."
    rows = (
        (one.cause, count_text(len(one.trials), "trial"), duration_text(one.seconds), one.reason, " ".join(one.advice))
        for one in content.failures
    )
    return _table(("Class", "Trials", "Lost", "Reason", "Advice"), rows)


def _refused(content: ReportContent) -> str:
    rows = ((one.cause, f"{one.count:,}", one.reason, one.advice) for one in content.refused)
    return _table(("Refused before a start", "Configurations", "For example", "Advice"), rows)


def _quality(content: ReportContent) -> str:
    if not content.quality:
        return "No gate was run in this study: nothing is known about the answers."
    rows = ((view.changes, check.name, check.text, check.verdict) for view in content.quality for check in view.checks)
    return _table(("Configuration", "Statistic", "Value", "Verdict"), rows)
