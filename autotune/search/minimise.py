"""A recommendation that holds only what matters: every changed setting of the winner is undone where nothing is lost.

Stage `single` measures, interleaved with the winner, one arm per changed setting in which only that setting is undone.
Two rounds say little of one arm, so the spread is pooled over all of them. Stage `together` then measures the winner
with everything undone that seemed not to matter; effects can add up, so the setting with the largest loss comes back
until the loss of the rest is within the margin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from autotune.outcome import Proposal, TrialRecord
from autotune.search.confirm import ERROR, analyse, over_each
from autotune.search.health import settled
from autotune.search.objectives import Objectives
from autotune.search.paired import Ratio
from autotune.space.config import Change, EngineConfig
from autotune.space.layout import Layout

ORIGIN = "minimise"
NOTHING_LOST = "undoing it loses nothing that can be measured"
BY_CHANCE = 0.1
"""Chance, per objective, that a setting without any effect stays. What helps a little and is dropped with it comes back
where all that was dropped loses more than the margin together."""


@dataclass(frozen=True, slots=True)
class Undo:
    """One setting of the winner put back to what it is in the baseline.

    Attributes:
        name: the setting; `layout` for the parallel sizes, which only change together.
        changes: what the winner changed.
        config: the winner without these changes.
    """

    name: str
    changes: tuple[Change, ...]
    config: EngineConfig


@dataclass(frozen=True, slots=True)
class Effect:
    """What one setting of the winner is worth.

    Attributes:
        name: the setting.
        changes: what the winner changed.
        ratios: winner over the winner without this setting, per objective: above 1 means that the setting helps. Empty
            where the winner does not run, breaks a limit or is refused without it.
        matters: it stays in the recommendation.
        sentence: for the reader.
    """

    name: str
    changes: tuple[Change, ...]
    ratios: tuple[Ratio, ...]
    matters: bool
    sentence: str


@dataclass(frozen=True)
class Minimal:
    """The result: the configuration that is left, and what each of the winner's settings is worth."""

    config: EngineConfig
    effects: tuple[Effect, ...]
    dropped: tuple[str, ...]


@dataclass(frozen=True)
class Minimiser:
    """Plans and judges the undo tests. Everything follows from the records, so it can be interrupted anywhere.

    Attributes:
        winner: the confirmed configuration.
        baseline: what runs today.
        objectives: what counts.
        refuse: the preflight: why a configuration need not be started, or None.
        rounds: rounds per stage.
        margin: losses below this are within noise.
    """

    winner: EngineConfig
    baseline: EngineConfig
    objectives: Objectives
    refuse: Callable[[EngineConfig], str | None]
    rounds: int = 2
    margin: float = 0.02

    def next_run(self, history: Sequence[TrialRecord]) -> Proposal | None:
        """The next fresh start to measure, or None when the recommendation is minimal."""
        singles = [one.config for one in self._steps if self.refuse(one.config) is None]
        if not singles:
            return None
        runs = _Runs.of(history)
        proposal = self._missing(0, singles, runs)
        if proposal is not None:
            return proposal
        for stage, names in enumerate(self._shrinking(runs), start=1):
            if self._nothing_lost(stage, names, runs):
                return None
            proposal = self._missing(stage, [self._without(names)], runs) if len(names) > 1 else None
            if proposal is not None:
                return proposal
        return None

    def result(self, history: Sequence[TrialRecord]) -> Minimal:
        """What is left of the winner, from the records so far."""
        runs = _Runs.of(history)
        effects = self.effects(history)
        for stage, names in enumerate(self._shrinking(runs), start=1):
            if self._nothing_lost(stage, names, runs):
                return Minimal(self._without(names), effects, names)
        return Minimal(self.winner, effects, ())

    def effects(self, history: Sequence[TrialRecord]) -> tuple[Effect, ...]:
        """The measured effect of every changed setting."""
        return tuple(self._effects(_Runs.of(history)))

    @cached_property
    def _steps(self) -> tuple[Undo, ...]:
        return undo_steps(self.winner, self.baseline)

    def _without(self, names: Sequence[str]) -> EngineConfig:
        config = self.winner
        for undo in self._steps:
            if undo.name in names:
                config = _undo(config, undo.changes)
        return config

    def _effects(self, runs: _Runs) -> list[Effect]:
        tested = [undo.config for undo in self._steps if self.refuse(undo.config) is None]
        pairs = {one.hash: self._pairs(0, one, runs) for one in tested}
        rounds: list[dict[str, TrialRecord]] = [{} for _ in range(self.rounds)]
        for one in pairs.values():
            for together, pair in zip(rounds, one, strict=False):
                together |= pair
        shown, strict = (
            over_each(rounds, self.objectives, self.winner, tested, error=error) for error in (ERROR / 2, BY_CHANCE)
        )
        keys = [undo.config.hash for undo in self._steps]
        return [
            self._effect(undo, pairs.get(key, []), shown.get(key, ()), strict.get(key, ()))
            for undo, key in zip(self._steps, keys, strict=True)
        ]

    def _effect(
        self,
        undo: Undo,
        pairs: Sequence[Mapping[str, TrialRecord]],
        ratios: tuple[Ratio, ...],
        strict: tuple[Ratio, ...],
    ) -> Effect:
        """Judge one setting by its rounds and their ratios, with 95 % intervals and with those that decide."""
        refusal = self.refuse(undo.config)
        if refusal is not None:
            return Effect(undo.name, undo.changes, (), True, f"needed: without it {refusal}")
        if not pairs:
            return Effect(undo.name, undo.changes, (), True, "not tested")
        if not analyse(pairs, self.objectives, undo.config, margin=self.margin).baseline_holds:
            return Effect(undo.name, undo.changes, ratios, True, "needed: without it a limit does not hold")
        helps = [ratio for ratio, bound in zip(ratios, strict, strict=True) if bound.low > 1]
        if not helps:
            return Effect(undo.name, undo.changes, ratios, False, NOTHING_LOST)
        return Effect(undo.name, undo.changes, ratios, True, str(max(helps, key=lambda ratio: ratio.value)))

    def _shrinking(self, runs: _Runs) -> list[tuple[str, ...]]:
        """Sets of settings to drop, largest first; the setting with the largest loss comes back first."""
        effects = {one.name: one for one in self._effects(runs)}
        droppable = [name for name, effect in effects.items() if not effect.matters]
        droppable.sort(key=lambda name: max((ratio.value for ratio in effects[name].ratios), default=1.0))
        sets = [tuple(droppable[:count]) for count in range(len(droppable), 0, -1)]
        return [names for names in sets if self.refuse(self._without(names)) is None]

    def _nothing_lost(self, stage: int, names: Sequence[str], runs: _Runs) -> bool:
        """Dropping all of `names` together costs nothing. A single one was settled by its own test."""
        if len(names) == 1:
            return True
        pairs = self._pairs(stage, self._without(names), runs)
        if len(pairs) < self.rounds:
            return False
        arm = analyse(pairs, self.objectives, self.winner, margin=self.margin, error=ERROR).arms[0]
        return arm.limits_hold and all(ratio.value > 1 - self.margin for ratio in arm.ratios)

    def _pairs(self, stage: int, config: EngineConfig, runs: _Runs) -> list[dict[str, TrialRecord]]:
        """Rounds of one stage: the winner was measured `rounds` times in each."""
        winner = runs.done.get(self.winner.hash, ())[stage * self.rounds : (stage + 1) * self.rounds]
        other = runs.done.get(config.hash, ())
        return [{self.winner.hash: mine, config.hash: theirs} for mine, theirs in zip(winner, other, strict=False)]

    def _missing(self, stage: int, others: Sequence[EngineConfig], runs: _Runs) -> Proposal | None:
        """The next run of a stage: round by round, the winner and every other arm once; who begins rotates."""
        arms = [self.winner, *others]
        counts = {arm.hash: len(runs.done.get(arm.hash, ())) for arm in arms}
        counts[self.winner.hash] -= stage * self.rounds
        for number in range(self.rounds):
            shift = number % len(arms)
            for arm in [*arms[shift:], *arms[:shift]]:
                if counts[arm.hash] <= number:
                    return Proposal(arm, origin=ORIGIN, note=self._note(arm))
        return None

    def _note(self, config: EngineConfig) -> str:
        if config.hash == self.winner.hash:
            return "the winner"
        values = {**dict(config.args), **dict(config.env)}
        undone = [
            undo.name
            for undo in self._steps
            if all(values.get(change.name) == change.before for change in undo.changes)
        ]
        return f"the winner without {', '.join(undone)}"


@dataclass(frozen=True)
class _Runs:
    """Finished undo tests by configuration hash, in their order; see `settled`."""

    done: Mapping[str, Sequence[TrialRecord]]

    @classmethod
    def of(cls, history: Sequence[TrialRecord]) -> _Runs:
        done: dict[str, list[TrialRecord]] = {}
        for record in settled(history, ORIGIN):
            done.setdefault(record.config.hash, []).append(record)
        return cls(done)


def undo_steps(winner: EngineConfig, baseline: EngineConfig) -> tuple[Undo, ...]:
    """One per changed setting; parallel sizes are one, because they only make sense together."""
    sizes = frozenset(Layout().args)
    groups: dict[str, list[Change]] = {}
    for change in winner.changes_from(baseline):
        groups.setdefault("layout" if change.name in sizes else change.name, []).append(change)
    return tuple(Undo(name, tuple(group), _undo(winner, group)) for name, group in groups.items())


def _undo(config: EngineConfig, changes: Sequence[Change]) -> EngineConfig:
    variables = dict(config.env)
    names = {change.name for change in changes}
    args = {change.name: change.before for change in changes if change.name not in variables}
    env = {name: value for name, value in variables.items() if name not in names}
    restored = {change.name: str(change.before) for change in changes if change.name in variables and change.before}
    return EngineConfig.of({**dict(config.args), **args}, {**env, **restored})
