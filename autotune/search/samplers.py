"""Optuna's samplers as strategies. A study is rebuilt in memory from the records for every call."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, NSGAIISampler, TPESampler
from optuna.trial import TrialState

from autotune.errors import EnvironmentFault
from autotune.outcome import Proposal
from autotune.search.encoding import Told, encode_all
from autotune.search.objectives import Objectives
from autotune.search.proposer import Setting, Situation
from autotune.search.screen import Point
from autotune.space.config import FrozenValue

if TYPE_CHECKING:
    from autotune.space.space import Parameter

ASKS = {"tpe": 40, "nsga2": 40, "gp": 6}
"""Suggestions looked at in one call before a random draw is taken instead; a suggestion of the GP costs a second."""
STARTUP = {"tpe": 10, "gp": 6}
POPULATION = 10
"""NSGA-II's population: its default of 50 is a random search at the budgets of a real engine."""

optuna.logging.set_verbosity(optuna.logging.WARNING)
logging.getLogger("optuna").propagate = False


class SamplerStrategy:
    """One of Optuna's samplers: `tpe` (multivariate), `gp` (needs the extra) or `nsga2`."""

    def __init__(self, setting: Setting, kind: str) -> None:
        if kind == "gp":
            require_gp()
        self._setting = setting
        self._kind = kind
        self._flat = kind != "tpe"
        self._parameters = {parameter.name: parameter for parameter in setting.screen.space.parameters}
        self._distributions = {name: _distribution(one) for name, one in self._parameters.items()}

    def suggest(self, situation: Situation) -> Proposal | None:
        study = self._study(situation)
        refused = self._refusal(study)
        for _ in range(ASKS[self._kind]):
            trial = study.ask(self._distributions)
            candidate = self._setting.screen.candidate(self._point(trial.params), situation.tried)
            if candidate.admitted:
                return candidate.proposal("sampler", self._kind)
            _tell(study, trial, None if candidate.duplicate else refused, self._setting.objectives)
        return self._setting.random_proposal(situation, f"{self._kind} found nothing new, so a random draw")

    def _study(self, situation: Situation) -> optuna.Study:
        objectives = self._setting.objectives
        study = optuna.create_study(directions=["minimize"] * len(objectives.items), sampler=self._sampler(situation))
        for record, one in encode_all(situation.records, objectives):
            params = self._indices(dict(record.proposal.point))
            if one.values is None or params is None:
                continue
            study.add_trial(
                optuna.trial.create_trial(
                    state=TrialState.COMPLETE,
                    values=list(objectives.model_losses(one.values)),
                    params=params,
                    distributions={name: self._distributions[name] for name in params},
                    constraints=dict(zip(objectives.constraint_names, one.constraints, strict=True)),
                )
            )
        for proposal in situation.running:
            params = self._indices(dict(proposal.point))
            if params is not None:
                study.enqueue_trial(params)
                study.ask(self._distributions)
        return study

    def _refusal(self, study: optuna.Study) -> Told:
        """What is told of a suggestion that the screen refuses: the worst losses so far, not feasible."""
        objectives = self._setting.objectives
        rows = [trial.values for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))]
        worst = tuple(max(column) for column in zip(*rows, strict=True)) if rows else (0.0,) * len(objectives.items)
        return Told(worst, (*(0.0 for _ in objectives.constraint_names[:-1]), 1.0))

    def _sampler(self, situation: Situation) -> BaseSampler:
        seed = situation.seed
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if self._kind == "tpe":
                return TPESampler(
                    multivariate=True,
                    constant_liar=True,
                    n_startup_trials=STARTUP["tpe"],
                    warn_independent_sampling=False,
                    seed=seed,
                )
            if self._kind == "gp":
                return optuna.samplers.GPSampler(
                    n_startup_trials=STARTUP["gp"], warn_independent_sampling=False, seed=seed
                )
            return NSGAIISampler(population_size=POPULATION, seed=seed)

    def _point(self, params: Mapping[str, object]) -> Point:
        return {name: self._parameters[name].values[int(str(index))] for name, index in params.items()}

    def _indices(self, point: Mapping[str, FrozenValue]) -> dict[str, int] | None:
        """Ladder and choice indices; None for a point that is not of this space."""
        if not point or any(name not in self._parameters for name in point):
            return None
        indices: dict[str, int] = {}
        for name, parameter in self._parameters.items():
            if name in point:
                index = _index(parameter, point[name])
                if index is None:
                    return None
                indices[name] = index
            elif self._flat:
                indices[name] = 0
        return indices


def require_gp() -> None:
    """Raises EnvironmentFault where the Gaussian process of Optuna cannot run."""
    missing = [name for name in ("torch", "scipy") if importlib.util.find_spec(name) is None]
    if missing:
        raise EnvironmentFault(
            f"proposer gp needs {' and '.join(missing)}", hint="pip install 'vllm-autotune[gp]', or use proposer: auto"
        )


def _index(parameter: Parameter, value: FrozenValue) -> int | None:
    """Position of a value, `True` and `1` kept apart; None for a value that is not legal."""
    for index, own in enumerate(parameter.values):
        if type(own) is type(value) and own == value:
            return index
    return None


def _distribution(parameter: Parameter) -> BaseDistribution:
    count = len(parameter.values)
    if parameter.ordered and count > 1:
        return IntDistribution(0, count - 1)
    return CategoricalDistribution(list(range(count)))


def _tell(study: optuna.Study, trial: optuna.Trial, told: Told | None, objectives: Objectives) -> None:
    """Tell losses of a suggestion that is not going to run; None for a duplicate, which is simply taken back."""
    if told is None or told.values is None:
        study.tell(trial, state=TrialState.FAIL)
        return
    for name, value in zip(objectives.constraint_names, told.constraints, strict=True):
        trial.set_constraint(name, value)
    study.tell(trial, list(told.values))
