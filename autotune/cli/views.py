"""Three views of the same events: a live screen, plain lines, and JSON lines for machines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from autotune.events import (
    PLACED,
    ConfirmationStarted,
    Event,
    NeighboursChecked,
    Observer,
    StageStarted,
    StudyFinished,
    StudyStarted,
    TrialFinished,
    TrialStarted,
)
from autotune.load.area import area_of
from autotune.outcome import Measured, TrialRecord
from autotune.report.trials import reason_of
from autotune.report.wording import changes_text, count_text, duration_text, figure_text, number_text, outcome_text
from autotune.result import busy_seconds
from autotune.search.front import front_of
from autotune.search.health import settled
from autotune.search.objectives import Objectives
from autotune.search.stop import counted
from autotune.space.config import EngineConfig

Clock = Callable[[], float]


def figures_text(record: TrialRecord, objectives: Objectives) -> str:
    """The objectives of a record with their units, and which limits it misses, or why there are none."""
    if not isinstance(record.outcome, Measured):
        return record.outcome.reason
    parts = []
    for item, value in zip(objectives.items, objectives.values(record) or (), strict=False):
        estimate = None
        if item.level == "area":
            estimate = area_of(record.outcome.load.levels, item.key)
        elif isinstance(item.level, str) and item.level != "best" and record.outcome.load.levels:
            index = 0 if item.level == "first" else -1
            estimate = record.outcome.load.levels[index].estimate(item.key)
        shown = figure_text(item.key, estimate) if estimate is not None else number_text(value)
        parts.append(f"{item.key} {shown}")
    return "; ".join(text for text in (", ".join(parts), reason_of(record, objectives)) if text)


class PlainView:
    """A line per event, for logs and pipes."""

    def __init__(self, objectives: Objectives, baseline: EngineConfig, out: IO[str] | None = None) -> None:
        self._objectives = objectives
        self._baseline = baseline
        self._out = out or sys.stdout
        self._stages: dict[int, str] = {}

    def notify(self, event: Event) -> None:
        for line in self._lines(event):
            print(f"{time.strftime('%H:%M:%S')} {line}", file=self._out, flush=True)

    def _lines(self, event: Event) -> list[str]:
        match event:
            case StudyStarted():
                head = f"study {event.name}: {count_text(len(event.finished), 'trial')} in {event.folder}"
                head += " (simulated engine)" if event.simulated else ""
                return [head, *event.notes]
            case NeighboursChecked(sentence=sentence):
                return [f"neighbours: {sentence}"]
            case TrialStarted():
                expected = f", expected {duration_text(event.expected_s)}" if event.expected_s else ""
                changes = changes_text(event.proposal.config, self._baseline)
                return [f"trial {event.number} ({event.proposal.origin}{expected}): {changes}"]
            case StageStarted():
                if self._stages.get(event.number) == event.stage:
                    return []
                self._stages[event.number] = event.stage
                return [f"trial {event.number}: {event.detail if event.stage == PLACED else event.stage}"]
            case TrialFinished(record=record):
                self._stages.pop(record.number, None)
                again = "; it will be repeated" if event.retried else ""
                took = duration_text(record.seconds)
                figures = figures_text(record, self._objectives)
                return [f"trial {record.number}: {outcome_text(record.outcome)} in {took}: {figures}{again}"]
            case ConfirmationStarted():
                return [f"search ends: {event.reason}; {event.runs} confirmation runs on fresh starts"]
            case StudyFinished():
                return [f"study ends: {event.reason}", *event.notes]


class JsonView:
    """One JSON object a line, for machines."""

    def __init__(self, objectives: Objectives, out: IO[str] | None = None) -> None:
        self._objectives = objectives
        self._out = out or sys.stdout

    def notify(self, event: Event) -> None:
        print(json.dumps({"time": round(time.time(), 3), **self._body(event)}), file=self._out, flush=True)

    def _body(self, event: Event) -> dict[str, object]:
        match event:
            case StudyStarted():
                return {"event": "study_started", "study": event.name, "folder": str(event.folder),
                        "finished": len(event.finished), "budget": event.budget,
                        "simulated": event.simulated}  # fmt: skip
            case NeighboursChecked():
                return {"event": "neighbours_checked", "places": event.places, "verdict": event.verdict,
                        "sentence": event.sentence}  # fmt: skip
            case TrialStarted():
                proposal = event.proposal
                return {"event": "trial_started", "trial": event.number, "origin": proposal.origin,
                        "config": proposal.config.to_dict(), "expected_s": event.expected_s}  # fmt: skip
            case StageStarted():
                return {"event": "stage", "trial": event.number, "stage": event.stage, "detail": event.detail}
            case TrialFinished(record=record):
                return {"event": "trial_finished", "trial": record.number, "outcome": record.outcome.kind,
                        "seconds": round(record.seconds, 2), "retried": event.retried,
                        "feasible": self._objectives.feasible(record), **self._figures(record)}  # fmt: skip
            case ConfirmationStarted():
                return {"event": "confirmation_started", "reason": event.reason, "runs": event.runs}
            case StudyFinished():
                return {"event": "study_finished", "reason": event.reason, "summary": list(event.summary)}

    def _figures(self, record: TrialRecord) -> dict[str, object]:
        if not isinstance(record.outcome, Measured):
            return {"cause": record.outcome.cause, "reason": record.outcome.reason}
        values = self._objectives.values(record)
        return {"objectives": dict(zip(self._objectives.labels, values, strict=True))} if values else {}


class LiveView:
    """A screen that is redrawn: what runs, for how long, what is best so far, and the front."""

    def __init__(self, objectives: Objectives, baseline: EngineConfig, console: Console) -> None:
        self._objectives = objectives
        self._baseline = baseline
        self._console = console
        self._records: list[TrialRecord] = []
        self._front: list[TrialRecord] = []
        self._running: dict[int, tuple[TrialStarted, float, str]] = {}
        self._started: StudyStarted | None = None
        self._confirming: ConfirmationStarted | None = None
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self.screen, transient=True)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def notify(self, event: Event) -> None:
        match event:
            case StudyStarted():
                self._started = event
                self._records = list(event.finished)
                self._front = front_of(self._records, self._objectives)
                for note in event.notes:
                    self._console.print(Text(note, style="dim"))
            case NeighboursChecked(sentence=sentence):
                self._console.print(Text(f"neighbours: {sentence}", style="cyan"))
            case TrialStarted():
                self._running[event.number] = (event, time.monotonic(), "start")
            case StageStarted():
                if event.number in self._running:
                    started, begin, _ = self._running[event.number]
                    detail = f"{event.stage}: {event.detail}" if event.detail else event.stage
                    self._running[event.number] = (started, begin, detail)
            case TrialFinished(record=record):
                self._running.pop(record.number, None)
                self._records.append(record)
                self._front = front_of([*self._front, record], self._objectives)
                self._console.print(self._line(record))
            case ConfirmationStarted():
                self._confirming = event
            case StudyFinished():
                self._console.print(Text(f"study ends: {event.reason}"))

    def _line(self, record: TrialRecord) -> Text:
        style = "" if self._objectives.feasible(record) else "yellow" if record.outcome.learn else "red"
        line = Text(f"{record.number:>4} {record.proposal.origin:<9} ", style="dim")
        line.append(outcome_text(record.outcome), style=style)
        line.append(f"  {figures_text(record, self._objectives)}")
        line.append(f"  {changes_text(record.config, self._baseline, limit=90)}", style="dim")
        return line

    def screen(self) -> RenderableType:
        """What stands below the lines of finished trials."""
        parts: list[RenderableType] = [self._head(), *self._running_lines()]
        if self._front:
            parts.append(front_table(self._front, self._objectives, self._baseline))
        return Group(*parts)

    def _head(self) -> Text:
        if self._started is None:
            return Text("")
        searched = len(counted(self._records))
        head = Text(f"\n{self._started.name}", style="bold")
        head.append(f"  {searched} of {self._started.budget} trials of the search", style="")
        if self._confirming:
            head.append(f"  {self._proof(self._confirming)}", style="cyan")
        left = self._search_left(self._started, searched)
        if left and not self._confirming:
            head.append(f"  about {duration_text(left)} of search left", style="dim")
        if self._started.simulated:
            head.append("  simulated", style="magenta")
        return head

    def _search_left(self, started: StudyStarted, searched: int) -> float:
        """Seconds: the median trial times those that may come, and no more than the wall clock has left."""
        times = sorted(record.seconds for record in self._records if isinstance(record.outcome, Measured))
        if not times:
            return 0.0
        left = times[len(times) // 2] * max(0, started.budget - searched)
        if started.seconds_left is None:
            return left
        # By the trials' own clock: a simulated study's may be virtual.
        spent = busy_seconds(self._records[len(started.finished) :])
        return min(left, max(0.0, started.seconds_left - spent))

    def _proof(self, confirming: ConfirmationStarted) -> str:
        """How far the proof is: rounds of the confirmation, then undo tests, whose number is not known before."""
        if undone := len(settled(self._records, "minimise")):
            return f"undoing the winner's settings, {undone} runs so far"
        return f"confirming, {len(settled(self._records, 'confirm'))} of {confirming.runs} runs ({confirming.reason})"

    def _running_lines(self) -> list[Text]:
        lines = []
        for started, begin, stage in self._running.values():
            elapsed = time.monotonic() - begin
            line = Text(f"  trial {started.number} ", style="bold")
            line.append(f"{started.proposal.origin} ", style="cyan")
            line.append(f"{stage} ")
            line.append(duration_text(elapsed), style="dim")
            if started.expected_s:
                line.append(f" of about {duration_text(started.expected_s)}", style="dim")
            line.append(f"  {changes_text(started.proposal.config, self._baseline, limit=100)}")
            lines.append(line)
        return lines


def front_table(front: list[TrialRecord], objectives: Objectives, baseline: EngineConfig) -> Table:
    """The feasible front as a table, the best first objective on top."""
    table = Table(title="front", title_justify="left", show_edge=False, pad_edge=False, header_style="dim")
    table.add_column("trial", justify="right")
    for label in objectives.labels:
        # Words of a heading stand below each other: the room is the settings', which would else be broken in a number.
        table.add_column(label.replace("_", " ").replace("@", " @"), justify="right", max_width=10)
    table.add_column("against the baseline", overflow="fold")
    for record in sorted(front, key=objectives.rank):
        values = objectives.values(record) or ()
        table.add_row(
            str(record.number), *(number_text(value) for value in values), Text(changes_text(record.config, baseline))
        )
    return table


__all__ = ["JsonView", "LiveView", "Observer", "PlainView", "figures_text", "front_table"]
