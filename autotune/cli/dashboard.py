"""`autotune dashboard`: the study in optuna-dashboard, kept up to date while it runs."""

from __future__ import annotations

import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from autotune.assembly import frame
from autotune.cli.terminal import terminal
from autotune.host.gpus import read_gpus
from autotune.outcome import TrialRecord
from autotune.report.attachments import attach, named, study_note
from autotune.report.comparison import columns_of
from autotune.report.content import gather
from autotune.report.serving import served
from autotune.report.values import ReportContent
from autotune.result import FINAL, Recommendation, recommendation_from_json
from autotune.search.board import Attached, Board
from autotune.search.objectives import Objectives
from autotune.space.space import SearchSpace
from autotune.store import Store
from autotune.study import Study, open_study

LOOK_EVERY = 5.0
"""Seconds between two looks for new trials."""


def dashboard(
    study: Annotated[Path, typer.Argument(help="The study file.", show_default=False)],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 takes a free one.")] = 8080,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser.")] = True,
) -> None:
    """Open optuna-dashboard on the study: plots, notes, logs and load reports of every trial. Ctrl-C ends it."""
    opened = open_study(study)
    store = opened.existing_store()
    console = terminal()
    try:
        shown = ShownStudy(opened.as_measured(store), store)
        shown.refresh()
        with served(shown.board.app(), port) as address:
            url = address + shown.board.path
            console.print(Text(f"{opened.spec.name}: {url}"), soft_wrap=True)
            console.print(Text("Ctrl-C ends it.", style="dim"))
            if browser:
                webbrowser.open(url)
            shown.follow(threading.Event())
    except KeyboardInterrupt:
        console.print()
    finally:
        store.close()


class ShownStudy:
    """A study and its dashboard; `refresh` brings the latter up to date."""

    def __init__(self, study: Study, store: Store) -> None:
        self._study, self._store = study, store
        self._content: ReportContent | None = None
        objectives = Objectives.of(study.spec)
        titles = [named(column.title, column.unit) for column in columns_of(objectives)]
        self.board = Board(study.spec.name, _space(study), objectives, titles, self._attached)

    def refresh(self) -> int:
        """Show new trials; how many there were."""
        records = self._store.history()
        self._content = self._gathered(records, self._store.read(*FINAL, recommendation_from_json))
        return self.board.sync(records, study_note(self._content))

    def follow(self, ended: threading.Event) -> None:
        """Refresh now and then until `ended` is set."""
        while not ended.wait(LOOK_EVERY):
            self.refresh()

    def _gathered(self, records: Sequence[TrialRecord], recommendation: Recommendation | None) -> ReportContent:
        study = self._study
        return gather(study.spec, records, recommendation, path=study.path, home=study.folder)

    def _attached(self, record: TrialRecord) -> Attached:
        assert self._content is not None
        return attach(record, self._content, self._study.folder)


def _space(study: Study) -> SearchSpace:
    """The study's space, for the names and ranges of the parameters in the plots."""
    if study.spec.engine.kind == "endpoint":
        return SearchSpace(name="endpoint", parameters=())
    return frame(study, read_gpus(), guess=True).space
