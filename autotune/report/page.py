"""The report as one HTML file that needs nothing else: no network, no other file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files

from autotune.load.report import Estimate
from autotune.report.payload import page_data, script_json
from autotune.report.values import FailureView, GainView, ReportContent
from autotune.report.wording import count_text, duration_text, figure_text, ratio_text

SCRIPTS = ("chart", "tooltip", "front", "curves", "effects", "timeline", "telemetry", "quality", "table", "main")
"""Script files in the order they are put into the page; together they are one function."""
WORTH = "Beside each setting: the winner over the winner without it, where it helps most; above x1 it helps."
MARK = re.compile(r"%%([a-z_]+)%%")


def html_page(content: ReportContent) -> str:
    """The whole page."""
    parts = {
        "title": escape(f"{content.name}: autotune report"),
        "name": escape(content.name),
        "model": escape(content.model),
        "written": escape(content.written),
        "version": escape(content.version),
        "simulated": _simulated(content),
        "sentences": "".join(f"<p>{escape(sentence)}</p>" for sentence in content.sentences),
        "notes": _list(content.notes, "notes"),
        "gains": _gains(content),
        "changes": _changes(content),
        "command": _command(content.command),
        "command_hidden": "" if content.command else " hidden",
        "efficiency": _pairs(content.efficiency, "figures"),
        "failures": _failures(content.failures) + _refused(content),
        "facts": _pairs(content.facts, "facts") or _nothing("The host left no fingerprint."),
        "study_file": escape(content.study_file),
        "path": escape(content.path),
        "style": _template("style.css"),
        "data": script_json(page_data(content)),
        "script": "\n".join(_template(f"{name}.js") for name in SCRIPTS),
    }
    return _fill(_template("page.html"), parts)


def _template(name: str) -> str:
    return (files("autotune.report") / "templates" / name).read_text(encoding="utf-8")


def _fill(template: str, parts: Mapping[str, str]) -> str:
    """Replace every mark once; what was put in is not looked at again."""
    return MARK.sub(lambda match: parts[match.group(1)], template)


def _simulated(content: ReportContent) -> str:
    if not content.simulated:
        return ""
    return (
        '<p class="simulated"><strong>Simulated.</strong> An engine model produced every figure here, no GPU did. '
        "Nothing in this report says how fast a real machine is.</p>"
    )


def _command(command: str) -> str:
    """Each flag stays with its value on one line: a browser would break after any hyphen."""
    return " ".join(f"<span>{escape(part)}</span>" for part in re.split(r" (?=--)", command))


def _gains(content: ReportContent) -> str:
    if not any(row.baseline or row.found for row in content.gains):
        return _nothing("Nothing was measured yet.")
    if content.kept:
        return _today(content)
    reach = _reach(content.gains)
    rows = "".join(_gain(row, reach) for row in content.gains)
    found = f"Recommended, trial {content.chosen}" if content.chosen is not None else "Recommended"
    head = f"<th>Objective</th><th>Baseline</th><th>{escape(found)}</th><th colspan=2>Better by</th>"
    table = f'<table class="gains"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return table + _nothing(content.figures_note)


def _today(content: ReportContent) -> str:
    """Figures of what stays, and why nothing else was good enough."""
    rows = "".join(
        f"<tr><th>{escape(row.column.title)}<small>{_direction(row)}</small></th>"
        f'<td data-name="Today">{escape(_figure(row, row.baseline))}</td></tr>'
        for row in content.gains
    )
    head = f"<th>Objective</th><th>What runs today, trial {content.baseline}</th>"
    table = f'<table class="gains"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return table + _list(content.unproven, "notes") + _nothing(content.figures_note)


def _direction(row: GainView) -> str:
    return "more is better" if row.column.maximize else "less is better"


def _figure(row: GainView, figure: Estimate | None) -> str:
    return figure_text(row.column.label.partition("@")[0], figure)


def _reach(gains: Iterable[GainView]) -> float:
    """Largest distance of any ratio or interval from 1, for a scale that all rows share."""
    ends = [end for row in gains for end in (row.ratio, row.low, row.high) if end is not None and 0 < end < 20]
    return max([0.05, *(abs(end - 1) for end in ends)]) * 1.05


def _gain(row: GainView, reach: float) -> str:
    ratio = ratio_text(row.ratio, row.low, row.high) if row.ratio is not None else "–"
    cells = [
        f"<th>{escape(row.column.title)}<small>{_direction(row)}</small></th>",
        f'<td data-name="Baseline">{escape(_figure(row, row.baseline))}</td>',
        f'<td data-name="Recommended">{escape(_figure(row, row.found))}</td>',
        f'<td data-name="Better by" class="ratio">{escape(ratio)}</td>',
        f'<td class="forest">{_forest(row, reach)}</td>',
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _forest(row: GainView, reach: float) -> str:
    """The ratio and its interval on a line whose middle is ×1."""
    if row.ratio is None:
        return ""

    def place(value: float) -> float:
        return min(100.0, max(0.0, 50 + 50 * (value - 1) / reach))

    low, high = row.low if row.low is not None else row.ratio, row.high if row.high is not None else row.ratio
    kind = "up" if low > 1 else "down" if high < 1 else "even"
    bar = f'<i class="bar {kind}" style="left:{place(low):.1f}%;width:{place(high) - place(low):.1f}%"></i>'
    dot = f'<i class="dot {kind}" style="left:{place(row.ratio):.1f}%"></i>'
    return f'<span class="line"><i class="one"></i>{bar}{dot}</span>'


def _changes(content: ReportContent) -> str:
    if not content.changes:
        return _nothing("It changes nothing: keep what you run today." if content.command else "–")
    rows = "".join(
        f"<tr><th><code>{escape(one.name)}</code></th><td>{escape(one.before)}</td><td>→</td>"
        f"<td><b>{escape(one.after)}</b></td>{f'<td>{escape(one.worth)}</td>' if one.worth else ''}</tr>"
        for one in content.changes
    )
    worth = _nothing(WORTH) if any(one.worth for one in content.changes) else ""
    return f'<table class="changes"><tbody>{rows}</tbody></table>{worth}{_list(content.left_out, "notes")}'


def _failures(failures: Iterable[FailureView]) -> str:
    found = "".join(_failure(one) for one in failures)
    return found or _nothing("No trial failed.")


def _refused(content: ReportContent) -> str:
    """What was never started, below what failed."""
    found = f"<p>{escape(content.account)}</p>" if content.account else ""
    for one in content.refused:
        advice = f"<p>{escape(one.advice)}</p>" if one.advice else ""
        head = f"<code>{escape(one.cause)}</code> <small>refused before the start</small>"
        many = count_text(one.count, "configuration")
        found += f'<article class="failure"><h3>{head}</h3><p>{escape(one.reason)}</p>{advice}'
        found += f'<p class="quiet">{escape(many)}</p></article>'
    return found


def _failure(one: FailureView) -> str:
    numbers = ", ".join(str(number) for number in one.trials[:20]) + (" …" if len(one.trials) > 20 else "")
    lost = f"{count_text(len(one.trials), 'trial')}, {duration_text(one.seconds)}"
    words = {"refused": "refused before the start", "infeasible": "the search learnt from it", "broken": "a fault"}
    excerpt = (
        f"<details><summary>End of the log</summary><pre>{escape(one.excerpt)}</pre></details>" if one.excerpt else ""
    )
    head = f"<code>{escape(one.cause)}</code> <small>{words.get(one.standing, '')}</small>"
    return (
        f'<article class="failure"><h3>{head}</h3>'
        f"<p>{escape(one.reason)}</p>{_list(one.advice, 'advice')}"
        f'<p class="quiet">{escape(lost)} (trials {numbers})</p>{excerpt}</article>'
    )


def _pairs(pairs: Iterable[tuple[str, str]], kind: str) -> str:
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs)
    return f'<dl class="{kind}">{items}</dl>' if items else ""


def _list(items: Iterable[str], kind: str) -> str:
    found = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f'<ul class="{kind}">{found}</ul>' if found else ""


def _nothing(text: str) -> str:
    return f'<p class="quiet">{escape(text)}</p>'
