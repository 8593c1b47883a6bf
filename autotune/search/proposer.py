"""Who proposes the next configuration. All proposers share one order: repeat faults, baseline, experts, then search.

A proposer keeps no state that matters: what it proposes is a function of the seed, the records and what runs now. So a
study that was killed at any moment goes on as if nothing had happened.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from autotune.errors import SpecError
from autotune.outcome import Broken, Proposal, TrialRecord
from autotune.search.health import has_another_attempt
from autotune.search.objectives import REPEATS, Objectives, searched
from autotune.search.restart import CostModel
from autotune.search.screen import Key, Refuse, Screen, Tried
from autotune.search.warmstart import WarmStart
from autotune.space.config import EngineConfig
from autotune.space.headroom import AS_ASKED, Headroom

if TYPE_CHECKING:
    from autotune.space.experts import Expert
    from autotune.space.space import SearchSpace

TRIES = 400
"""Points looked at before a random search says that the space is exhausted."""


class Proposer(Protocol):
    """Proposes configurations one after the other."""

    def propose(
        self, history: Sequence[TrialRecord], *, running: Sequence[Proposal] = (), place: int = 0
    ) -> Proposal | None:
        """The next configuration to try, given all records of the study and what is being tried now.

        Neither what runs now nor a neighbour of it is proposed, as long as there is anything else.

        Args:
            history: all records, by number.
            running: what is being tried at other places.
            place: where the proposal will run; the engine there may take live changes.

        Returns:
            None when nothing is left to propose.
        """

    def told(self, record: TrialRecord) -> None:
        """Hear an outcome as soon as it is known. The record will also be in the next `history`."""


@dataclass(frozen=True)
class Situation:
    """What a search strategy decides on."""

    records: Sequence[TrialRecord]
    """What taught us something, one record per configuration."""
    history: Sequence[TrialRecord]
    running: Sequence[Proposal]
    tried: Tried
    seed: int
    """Differs for every call of a study, and is the same when the study is replayed."""
    place: int = 0
    """Where the proposal will run."""

    @property
    def rng(self) -> random.Random:
        return random.Random(self.seed)


class Strategy(Protocol):
    """The part of a proposer that searches."""

    def suggest(self, situation: Situation) -> Proposal | None:
        """A configuration that the screen admits, or None when it finds none."""


@dataclass(frozen=True)
class Setting:
    """What every strategy is made from."""

    screen: Screen
    objectives: Objectives
    baseline: EngineConfig
    seed: int
    live: frozenset[str] = frozenset()
    """Settings that a running engine can change."""
    compiles: frozenset[str] = frozenset()
    """Settings whose change means a new compilation; empty where that is not known."""
    costs: CostModel = field(default_factory=CostModel)
    headroom: Headroom = AS_ASKED
    """How much wider than asked for engines are started."""

    def random_proposal(self, situation: Situation, note: str = "") -> Proposal | None:
        """A uniformly drawn admitted configuration; None when many draws in a row found none."""
        rng = situation.rng
        for _ in range(TRIES):
            candidate = self.screen.candidate(self.screen.random_point(rng), situation.tried)
            if candidate.admitted:
                return candidate.proposal("sampler", note)
        return None


class StudyProposer:
    """Faults again, the baseline, the experts, then a strategy."""

    def __init__(self, setting: Setting, strategy: Strategy, warm: WarmStart) -> None:
        self._setting = setting
        self._strategy = strategy
        self._warm = warm

    def propose(
        self, history: Sequence[TrialRecord], *, running: Sequence[Proposal] = (), place: int = 0
    ) -> Proposal | None:
        again = _to_retry(history, running)
        if again is not None:
            return again
        tried = Tried.of(history, running)
        if self._setting.baseline.hash not in tried.hashes:
            return Proposal(self._setting.baseline, origin="baseline", note="what you run today")
        expert = self._warm.propose(tried, history, running, place)
        if expert is not None:
            return expert
        self._setting.screen.forget()
        seed = hash_seed(self._setting.seed, len(history) + len(running))
        pending = {key: None for one in running if (key := self._pending(one)) is not None}
        situation = Situation(searched(history), history, running, replace(tried, pending=pending), seed, place)
        found = self._strategy.suggest(situation)
        if found is None and pending:  # only neighbours are left: better than an idle place
            found = self._strategy.suggest(replace(situation, tried=tried))
        return found

    def _pending(self, proposal: Proposal) -> Key | None:
        if proposal.point:
            return proposal.point
        screen = self._setting.screen
        point = screen.space.point_of(proposal.config)
        return screen.key(point) if point else None

    def told(self, record: TrialRecord) -> None:
        """Nothing to do: the history says it all."""


def hash_seed(seed: int, number: int) -> int:
    """A seed for one call; never the same draws after a resume."""
    return (seed * 1_000_003 + number * 7_919 + 1) % 2**32


def _to_retry(history: Sequence[TrialRecord], running: Sequence[Proposal]) -> Proposal | None:
    """The latest configuration whose last outcome was a fault of ours, while it has attempts left."""
    last = {record.config.hash: record for record in history if record.proposal.origin not in REPEATS}
    busy = {one.config.hash for one in running}
    for key, record in reversed(last.items()):
        outcome = record.outcome
        if isinstance(outcome, Broken) and key not in busy and has_another_attempt(record, history):
            note = f"again after {outcome.cause}"
            return Proposal(record.config, record.proposal.point, _origin_of_retry(record), note)
    return None


def _origin_of_retry(record: TrialRecord) -> str:
    """A baseline stays the baseline, whatever happened to its first attempt."""
    return record.proposal.origin if record.proposal.origin == "baseline" else "retry"


def create_proposer(
    name: str,
    space: SearchSpace,
    objectives: Objectives,
    base: EngineConfig,
    seed: int,
    experts: Sequence[Expert],
    refuse: Refuse,
    baseline: EngineConfig,
    *,
    live: Collection[str] = (),
    compiles: Collection[str] = (),
    costs: CostModel | None = None,
    headroom: Headroom | None = None,
) -> Proposer:
    """The proposer of a study.

    Args:
        name: one of `auto`, `tpe`, `gp`, `nsga2`, `random`, `grid`, `local`.
        space: what may be proposed.
        objectives: what is optimised, and under which limits.
        base: arguments that every trial gets.
        seed: the same seed and the same outcomes give the same proposals.
        experts: known good settings, tried right after the baseline, in this order.
        refuse: the preflight: why a configuration need not be started, or None.
        baseline: what runs today; proposed first.
        live: settings that the engine can change without a restart.
        compiles: settings whose change means a new compilation (layouts always do); empty where that is not known.
        costs: seconds of starts and measurements before any was seen.
        headroom: how much wider than asked for engines are started.

    Raises:
        SpecError: unknown name.
        EnvironmentFault: the proposer needs an extra that is not installed.
    """
    makers = _makers()
    if name not in makers:
        raise SpecError(f"unknown proposer {name!r}", key="search.proposer", hint=f"legal: {', '.join(makers)}")
    setting = Setting(
        Screen(space, base, refuse),
        objectives,
        baseline,
        seed,
        frozenset(live),
        frozenset(compiles),
        costs or CostModel(),
        headroom or AS_ASKED,
    )
    return StudyProposer(setting, makers[name](setting), WarmStart(setting, experts, stacked=name == "auto"))


def _makers() -> dict[str, Callable[[Setting], Strategy]]:
    from autotune.search.auto import AutoStrategy
    from autotune.search.local import LocalStrategy
    from autotune.search.plain import GridStrategy, RandomStrategy
    from autotune.search.samplers import SamplerStrategy

    return {
        "auto": AutoStrategy,
        "tpe": lambda setting: SamplerStrategy(setting, "tpe"),
        "gp": lambda setting: SamplerStrategy(setting, "gp"),
        "nsga2": lambda setting: SamplerStrategy(setting, "nsga2"),
        "random": RandomStrategy,
        "grid": GridStrategy,
        "local": LocalStrategy,
    }
