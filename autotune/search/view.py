"""The study as optuna-dashboard sees it: a copy of our records in Optuna's tables, in the same database.

Nothing is read back from it. It can be thrown away and made again from the records, and it never gets ahead of them.
The dashboard (0.21) does not know Optuna's constraints and sees values only, so a configuration that fails just the
quality gate looks good there: the study's note says where to choose instead.
"""

from __future__ import annotations

import json
import sqlite3
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import optuna
import optuna_dashboard
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from autotune.errors import StoreError
from autotune.outcome import Broken, Infeasible, Measured, Proposal, TrialRecord
from autotune.search.encoding import Encoder, Told
from autotune.search.objectives import Objectives
from autotune.space.config import FrozenValue
from autotune.store import FILE

if TYPE_CHECKING:
    from autotune.space.space import Parameter, SearchSpace

BUSY_SECONDS = 60
"""How long a writer waits for another one."""
MOST = 2_000
"""Trials of a study that the view takes. Optuna needs some sixty statements for one, which would be most of what the
driver does in a study of thousands; `autotune dashboard` makes a view of all of them in memory.
"""
NUMBER = "trial"
"""User attribute that ties a trial of the view to our record."""
NOTE = """# {name}

A view of the study's records. Choose from `autotune show`, not from here: the plots do not know limits. A configuration
that crashed or was refused is drawn with the worst values measured; one that failed only the quality gate or an SLO has
its real values and can look better than anything that may be recommended (see the attribute `feasible`).
"""


@contextmanager
def _as_store_error() -> Iterator[None]:
    """Optuna's tables stand in the study's own database: where that cannot be written, say it as the store does."""
    try:
        yield
    except optuna.exceptions.StorageInternalError as error:
        cause = error.__cause__ or error
        sentence = str(getattr(cause, "orig", None) or cause).splitlines()[0]
        raise StoreError(
            f"the study's database, tables of the dashboard: {sentence}\n"
            "  Look at its disk (df -h) and its permissions, and run the study again: every finished trial is kept."
        ) from error


class OptunaView:
    """One Optuna study per space. A changed space begins a new one, because Optuna's choices cannot change."""

    def __init__(self, url: str, study_name: str, space: SearchSpace, objectives: Objectives) -> None:
        """Open or create the view; trials that a killed process left running are failed.

        Args:
            url: SQLAlchemy URL of the study's database, such as `sqlite:////folder/study.db`.
            study_name: name of our study; the space's fingerprint is appended.
            space: for names and ranges.
            objectives: for values and directions.
        """
        self._space, self._objectives = space, objectives
        self._distributions = {one.name: _distribution(one) for one in space.parameters}
        self.name = f"{study_name}-{space.fingerprint}"
        self._storage = _storage(url)
        self._open: dict[int, optuna.Trial] = {}
        self._known: set[int] | None = None
        self._encoder = Encoder(objectives)
        with _as_store_error():
            self._study = self._create(study_name)
            self.reap()

    def reap(self) -> int:
        """Fail trials of an earlier process that are still shown as running or waiting; how many there were."""
        states = (TrialState.RUNNING, TrialState.WAITING)
        left = self._study.get_trials(deepcopy=False, states=states)
        for trial in left:
            if trial.state is TrialState.WAITING:
                self._study.ask()
            self._study.tell(trial.number, state=TrialState.FAIL)
        self._open.clear()
        return len(left)

    def begin(self, number: int, proposal: Proposal) -> None:
        """Show a trial as running."""
        params = self._params(proposal)
        self._study.enqueue_trial(params, user_attrs=self._proposed(number, proposal))
        trial = self._study.ask({name: self._distributions[name] for name in params})
        self._open[number] = trial

    def sync(self, records: Sequence[TrialRecord]) -> int:
        """Add what is missing, in the order of the records; how many were added. Running it again adds nothing.

        Of a study with more than `MOST` trials the later ones are left out.
        """
        with _as_store_error():
            return self._sync(records)

    def _sync(self, records: Sequence[TrialRecord]) -> int:
        if self._known is None:
            return self._catch_up(records)
        room = max(0, MOST - len(self._known))
        new = [record for record in records if record.number not in self._known][:room]
        for record in new:
            self._finish(record, self._encoder.encode(record))
            self._known.add(record.number)
        return len(new)

    def _catch_up(self, records: Sequence[TrialRecord]) -> int:
        """The first time, the view itself says what it holds; after that, we are its only writer."""
        known = {
            int(trial.user_attrs[NUMBER])
            for trial in self._study.get_trials(deepcopy=False)
            if NUMBER in trial.user_attrs and trial.state.is_finished() and "outcome" in trial.user_attrs
        }
        self._encoder = Encoder(self._objectives)
        added = 0
        for record in records[:MOST]:
            told = self._encoder.encode(record)
            if record.number not in known:
                self._finish(record, told)
                added += 1
        self._known = {record.number for record in records[:MOST]}
        return added

    def rebuild(self, records: Sequence[TrialRecord]) -> int:
        """Throw the view away and make it again."""
        optuna.delete_study(study_name=self.name, storage=self._storage)
        self._open.clear()
        self._known = None
        self._study = self._create(self.name.removesuffix(f"-{self._space.fingerprint}"))
        return self.sync(records)

    def close(self) -> None:
        """Give the database connection back."""
        self._storage.remove_session()

    def _create(self, study_name: str) -> optuna.Study:
        study = optuna.create_study(
            study_name=self.name,
            storage=self._storage,
            directions=list(self._objectives.directions),
            load_if_exists=True,
            sampler=optuna.samplers.RandomSampler(seed=0),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names(list(self._objectives.labels))
        optuna_dashboard.save_note(study, NOTE.format(name=study_name))
        return study

    def _finish(self, record: TrialRecord, told: Told) -> None:
        trial = self._open.pop(record.number, None)
        attributes = {**self._proposed(record.number, record.proposal), **self._outcome(record)}
        if trial is None:
            self._add(record, told, attributes)
            return
        for name, value in attributes.items():
            trial.set_user_attr(name, value)
        for name, violation in zip(self._objectives.constraint_names, told.constraints, strict=True):
            trial.set_constraint(name, violation)
        if told.values is None:
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, list(told.values))

    def _add(self, record: TrialRecord, told: Told, attributes: Mapping[str, str | int | float]) -> None:
        params = self._params(record.proposal)
        self._study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.COMPLETE if told.learnt else TrialState.FAIL,
                values=list(told.values) if told.values is not None else None,
                params=params,
                distributions={name: self._distributions[name] for name in params},
                user_attrs=dict(attributes),
                constraints=dict(zip(self._objectives.constraint_names, told.constraints, strict=True)),
            )
        )

    def _params(self, proposal: Proposal) -> dict[str, bool | int | float | str | None]:
        """The values that lie in the space; a baseline outside of it has none and is shown by its attributes."""
        params: dict[str, bool | int | float | str | None] = {}
        for name, value in proposal.point:
            parameter = self._space.by_name.get(name)
            if parameter is not None and any(type(own) is type(value) and own == value for own in parameter.values):
                params[name] = _plain(value) if _named(parameter) else value  # type: ignore[assignment]
        return params

    def _proposed(self, number: int, proposal: Proposal) -> dict[str, str | int | float]:
        config = proposal.config
        arguments = " ".join(f"{name}={_plain(value)}" for name, value in (*config.args, *config.env))
        return {
            NUMBER: number,
            "origin": proposal.origin,
            "configuration": arguments,
        }

    def _outcome(self, record: TrialRecord) -> dict[str, str | int | float]:
        """Few attributes: each one costs Optuna three statements, which is most of what keeping a trial takes."""
        outcome = record.outcome
        details: dict[str, str | int | float] = {
            "note": record.proposal.note,
            "hash": record.config.hash,
            "seconds": round(record.seconds, 1),
            "restarted": "yes" if record.restarted else "no",
        }
        found: dict[str, str | int | float] = {
            "outcome": outcome.kind,
            "feasible": "yes" if self._objectives.feasible(record) else "no",
        }
        if isinstance(outcome, Infeasible | Broken):
            found["reason"] = f"{outcome.cause}: {outcome.reason}"
        if isinstance(outcome, Measured):
            details["quality"] = outcome.quality.verdict.value if outcome.quality is not None else "not checked"
            for level in outcome.load.levels:
                for key, estimate in level.metrics:
                    details[f"{key} at {level.level}"] = float(f"{estimate.value:.6g}")
        return {**found, "details": json.dumps(details)}


def _storage(url: str) -> RDBStorage:
    """Optuna's tables; a file has a write-ahead log, so that the dashboard can read while the study writes."""
    if not url.startswith(FILE):
        return RDBStorage(url)
    path = url.removeprefix(FILE)

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(path, timeout=BUSY_SECONDS, check_same_thread=False)

    with closing(connect()) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    # The path is no part of a URL: braces in it would be filled in, and a question mark would end it.
    return RDBStorage(f"{FILE}study.db", engine_kwargs={"creator": connect})


def _distribution(parameter: Parameter) -> BaseDistribution:
    """Numbers stay numbers, so that plots have an axis; the rest is a choice."""
    if _named(parameter):
        return CategoricalDistribution([_plain(value) for value in parameter.values])
    numbers = [value for value in parameter.values if isinstance(value, int | float)]
    low, high = min(numbers), max(numbers)
    wide = low > 0 and high / low >= 8
    if all(isinstance(value, int) for value in numbers):
        return IntDistribution(int(low), int(high), log=wide)
    return FloatDistribution(float(low), float(high), log=wide)


def _named(parameter: Parameter) -> bool:
    plain = all(isinstance(value, int | float) and not isinstance(value, bool) for value in parameter.values)
    return not (parameter.ordered and plain and len(parameter.values) > 1)


def _plain(value: FrozenValue) -> str:
    if value is None:
        return "not given"
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
