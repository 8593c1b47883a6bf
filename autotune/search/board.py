"""The study as optuna-dashboard shows it: every record as a trial, with a note, attributes and files.

It lives in memory and is made from the records: hundreds of trials take a second, it works while the study runs, and
whatever is written or deleted in the dashboard cannot touch the study. Files are made when somebody opens them.
"""

from __future__ import annotations

import io
import json
import uuid
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import BinaryIO, Literal
from wsgiref.types import WSGIApplication

import optuna
import optuna_dashboard
from optuna.artifacts.exceptions import ArtifactNotFound
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from autotune.outcome import TrialRecord
from autotune.search.encoding import Told, encode_all
from autotune.search.objectives import Objectives
from autotune.space.config import FrozenValue
from autotune.space.space import Parameter, SearchSpace

RECORD = "record"
"""User attribute with our own number: Optuna counts on its own where numbers are missing."""
CONSTRAINTS = "constraints"
"""System attribute of Optuna before 5, the only one that the dashboard reads: its front greys what breaks a limit."""
ARTIFACT = "artifacts:"
"""Prefix of the system attributes that name a trial's files."""
WIDE = 8
"""A ladder whose ends are so many times apart gets a logarithmic axis."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of a trial. `read` gives its bytes when somebody opens it; they hold no secrets."""

    name: str
    mimetype: str
    read: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class Attached:
    """What stands beside a trial: a note in Markdown, attributes with readable names, files."""

    note: str
    attributes: tuple[tuple[str, str | float], ...] = ()
    files: tuple[File, ...] = ()


class Board:
    """A dashboard of one study.

    Args:
        name: the study's name.
        space: for names and ranges of the parameters.
        objectives: for values, directions and limits.
        titles: what the objectives are called, one each.
        attach: gives what stands beside a trial; asked once a trial.
    """

    def __init__(
        self,
        name: str,
        space: SearchSpace,
        objectives: Objectives,
        titles: Sequence[str],
        attach: Callable[[TrialRecord], Attached],
    ) -> None:
        self._objectives, self._attach = objectives, attach
        self._parameters = {one.name: one for one in space.parameters}
        self._distributions = {one.name: _distribution(one) for one in space.parameters}
        self._files = _Files()
        self._shown: set[int] = set()
        self._note = ""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._storage = optuna.storages.InMemoryStorage()
        directions: list[optuna.study.StudyDirection | Literal["minimize", "maximize"]] = [
            "maximize" if item.maximize else "minimize" for item in objectives.items
        ]
        self._study = optuna.create_study(study_name=name, storage=self._storage, directions=directions)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self._study.set_metric_names(list(titles))
        self.path = f"/dashboard/studies/{self._storage.get_study_id_from_name(name)}"

    def sync(self, records: Sequence[TrialRecord], note: str) -> int:
        """Show the records that are not shown yet; how many there were. `note` is the study's, in Markdown."""
        new = [(record, told) for record, told in encode_all(records, self._objectives)
               if record.number not in self._shown]  # fmt: skip
        for record, told in new:
            self._add(record, told)
        if note != self._note:
            optuna_dashboard.save_note(self._study, note)
            self._note = note
        return len(new)

    def app(self) -> WSGIApplication:
        """The dashboard as a WSGI application."""
        app: WSGIApplication = optuna_dashboard.wsgi(self._storage, artifact_store=self._files)
        return app

    def _add(self, record: TrialRecord, told: Told) -> None:
        attached = self._attach(record)
        trial = self._frozen(record, told, attached)
        self._study.add_trial(trial)
        added = self._study.get_trials(deepcopy=False)[-1]
        optuna_dashboard.save_note(optuna.trial.Trial(self._study, added._trial_id), attached.note)
        self._shown.add(record.number)

    def _frozen(self, record: TrialRecord, told: Told, attached: Attached) -> FrozenTrial:
        params = self._params(record)
        system: dict[str, object] = {CONSTRAINTS: list(told.constraints)}
        for file in attached.files:
            meta = {"artifact_id": self._files.offer(file), "filename": file.name, "mimetype": file.mimetype}
            system[f"{ARTIFACT}{meta['artifact_id']}"] = json.dumps({**meta, "encoding": None})
        trial = optuna.trial.create_trial(
            state=TrialState.COMPLETE if told.learnt else TrialState.FAIL,
            values=list(told.values) if told.values is not None else None,
            params=params,
            distributions={name: self._distributions[name] for name in params},
            user_attrs={RECORD: record.number, **dict(attached.attributes)},
            system_attrs=system,
        )
        trial.datetime_start = datetime.fromtimestamp(record.started_at)
        trial.datetime_complete = datetime.fromtimestamp(record.started_at + record.seconds)
        return trial

    def _params(self, record: TrialRecord) -> dict[str, bool | int | float | str | None]:
        """The point's values that lie in the space; a configuration outside of it is told by its attributes."""
        params: dict[str, bool | int | float | str | None] = {}
        for name, value in record.proposal.point:
            parameter = self._parameters.get(name)
            if parameter is not None and any(type(own) is type(value) and own == value for own in parameter.values):
                number = isinstance(value, int | float) and _numeric(parameter)
                params[name] = value if number and isinstance(value, int | float) else _text(value)
        return params


class _Files:
    """An artifact store whose files are made when they are read. See `optuna.artifacts` for the protocol."""

    def __init__(self) -> None:
        self._offered: dict[str, File] = {}

    def offer(self, file: File) -> str:
        """Take a file in; its id."""
        key = str(uuid.uuid4())
        self._offered[key] = file
        return key

    def open_reader(self, artifact_id: str) -> BinaryIO:
        if artifact_id not in self._offered:
            raise ArtifactNotFound("not found")
        return io.BytesIO(self._offered[artifact_id].read())

    def write(self, artifact_id: str, content_body: BinaryIO) -> None:
        body = content_body.read()
        self._offered[artifact_id] = File(artifact_id, "application/octet-stream", lambda: body)

    def remove(self, artifact_id: str) -> None:
        self._offered.pop(artifact_id, None)


def _distribution(parameter: Parameter) -> BaseDistribution:
    """Ladders of numbers stay numbers, so that plots have an axis; the rest is a choice."""
    if not _numeric(parameter):
        return CategoricalDistribution([_text(value) for value in parameter.values])
    numbers = [value for value in parameter.values if isinstance(value, int | float)]
    low, high = min(numbers), max(numbers)
    wide = low > 0 and high / low >= WIDE
    if all(isinstance(value, int) for value in numbers):
        return IntDistribution(int(low), int(high), log=wide)
    return FloatDistribution(float(low), float(high), log=wide)


def _numeric(parameter: Parameter) -> bool:
    plain = all(isinstance(value, int | float) and not isinstance(value, bool) for value in parameter.values)
    return parameter.ordered and plain and len(parameter.values) > 1


def _text(value: FrozenValue) -> str:
    if value is None:
        return "not given"
    if isinstance(value, bool):
        return "on" if value else "off"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
