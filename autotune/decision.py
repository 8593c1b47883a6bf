"""What a study decides from its records alone: when it stops, what is confirmed, what is recommended. All pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.outcome import Measured, Proposal, TrialRecord
from autotune.quality.wording import evidence
from autotune.report.trials import reason_of
from autotune.report.wording import changes_text, count_text
from autotune.result import Recommendation, rivals_of
from autotune.search.confirm import (
    ArmResult,
    Confirmation,
    ConfirmRun,
    analyse,
    finalists,
    next_run,
    plan,
    rounds_of,
    versus,
)
from autotune.search.drift import drift_of, next_sentinel
from autotune.search.front import front_of
from autotune.search.minimise import Minimiser
from autotune.search.neighbours import judge, levels
from autotune.search.objectives import REPEATS, TAKEN_OVER, Objectives
from autotune.search.stop import StopRule, counted
from autotune.space.config import EngineConfig
from autotune.space.defaults import without_spelt_out
from autotune.space.layout import Layout
from autotune.spec.study import StudySpec
from autotune.trial import Preflight


@dataclass(frozen=True)
class Rules:
    """The decisions of one study."""

    spec: StudySpec
    objectives: Objectives
    baseline: EngineConfig
    preflight: Preflight

    def stop_reason(self, records: Sequence[TrialRecord], elapsed: float) -> str | None:
        """Why the search ends, or None. `elapsed`: seconds over all sessions of the study."""
        stop = StopRule.of(self.spec.search).check(records, self.objectives, elapsed=elapsed)
        if stop is not None:
            return stop.sentence
        drift = drift_of(records, self.objectives)
        return drift.sentence if drift.verdict == "stop" else None

    def spoken_for(self, records: Sequence[TrialRecord], running: Sequence[Proposal]) -> bool:
        """What runs now may use up the last trials of the budget: nothing more is proposed until that is known."""
        left = self.spec.search.trials - len(counted(records))
        return len([one for one in running if one.origin not in REPEATS]) >= left

    @property
    def checked_places(self) -> int:
        """Trials at the same time that the check of neighbours begins with: as many baselines as the GPUs hold."""
        return self.spec.hardware.at_once(Layout.of(self.baseline).gpus)

    @property
    def baseline_alone(self) -> bool:
        """Whether other trials have to wait for the baseline.

        The quality gate needs its answers, a load that is placed its knee, the check of neighbours its engine alone.
        """
        hardware, placed = self.spec.hardware, self.spec.load.knee is not None
        return self.spec.quality.enabled or placed or hardware.neighbour_check or hardware.parallel_trials == 1

    def baseline_due(self, records: Sequence[TrialRecord]) -> Proposal | None:
        """The baseline, until it is measured: there is nothing to compare with before, whatever an earlier run met."""
        if any(isinstance(one.outcome, Measured) and one.config.hash == self.baseline.hash for one in records):
            return None
        return Proposal(self.baseline, origin="baseline", note="what you run today")

    def sentinel(self, records: Sequence[TrialRecord]) -> Proposal | None:
        """The baseline once more, when it is due."""
        return next_sentinel(records, self.spec.search.sentinel_every)

    # -- proof -------------------------------------------------------------------------------------------------------

    def confirmation_runs(self, records: Sequence[TrialRecord]) -> list[ConfirmRun]:
        """The whole plan of the confirmation; empty where there is nothing to confirm."""
        confirm = self.spec.confirm
        if confirm.rounds == 0:
            return []
        chosen = finalists(records, self.objectives, confirm.finalists, self.baseline)
        rivals = rivals_of(self.spec)
        if not chosen and not rivals:
            return []
        return plan(chosen, self.baseline, confirm.rounds, seed=self.spec.load.seed, rivals=rivals)

    def next_confirmation(self, records: Sequence[TrialRecord]) -> ConfirmRun | None:
        """The next run of the plan that has no outcome yet."""
        return next_run(self.confirmation_runs(records), records)

    def confirmation(self, records: Sequence[TrialRecord]) -> Confirmation | None:
        """What the confirmation says so far; None before its first complete round."""
        rounds = rounds_of(records)
        if not rounds:
            return None
        extra = drift_of(records, self.objectives).extra_spread
        return analyse(rounds, self.objectives, self.baseline, margin=self.spec.confirm.margin, extra_spread=extra)

    def _minimiser(self, confirmation: Confirmation | None) -> Minimiser | None:
        winner = confirmation.winner if confirmation else None
        if winner is None or not self.spec.confirm.minimise:
            return None
        config = without_spelt_out(winner.config)
        return Minimiser(config, self.baseline, self.objectives, self.refusal, margin=self.spec.confirm.margin)

    def refusal(self, config: EngineConfig) -> str | None:
        """Why `config` need not be started, or None."""
        refusal = self.preflight.refuse(config)
        return refusal.reason if refusal is not None else None

    def next_undo(self, records: Sequence[TrialRecord]) -> Proposal | None:
        """The next fresh start that tells what one setting of the winner is worth, or None when that is known."""
        minimiser = self._minimiser(self.confirmation(records))
        return minimiser.next_run(records) if minimiser else None

    def recommendation(
        self, records: Sequence[TrialRecord], confirmation: Confirmation | None
    ) -> Recommendation | None:
        """What to run: a proven winner, else what runs today; None where nothing was measured."""
        if not any(isinstance(record.outcome, Measured) for record in records):
            return None
        winner = confirmation.winner if confirmation else None
        if winner is None:
            return Recommendation(
                self.baseline,
                self.baseline,
                _trial_of(self.baseline, records),
                False,
                self._no_winner(records, confirmation),
                against=self._against(self.baseline, records) if confirmation is not None else (),
            )
        gains = tuple((ratio.label, ratio.value, ratio.low, ratio.high) for ratio in winner.ratios)
        sentence = confirmation.sentence if confirmation else ""
        minimiser = self._minimiser(confirmation)
        minimal = minimiser.result(records) if minimiser else None
        return Recommendation(
            config=minimal.config if minimal else without_spelt_out(winner.config),
            baseline=self.baseline,
            trial=_trial_of(winner.config, records),
            proven=True,
            sentence=sentence,
            gains=gains,
            quality=_quality(winner, records),
            effects=tuple((effect.name, effect.sentence) for effect in minimal.effects) if minimal else (),
            against=self._against(winner.config, records),
        )

    def _against(self, config: EngineConfig, records: Sequence[TrialRecord]) -> tuple[tuple[str, str], ...]:
        """One arm of the confirmation over each rival, as measured in the same rounds."""
        rounds, extra = rounds_of(records), drift_of(records, self.objectives).extra_spread
        found = []
        for name, rival in rivals_of(self.spec).items():
            if rival.hash == config.hash:
                found.append((name, "is what is recommended"))
                continue
            ratios = versus(rounds, self.objectives, config, rival, extra_spread=extra)
            found.append((name, "; ".join(map(str, ratios)) or "could not be measured"))
        return tuple(found)

    def _no_winner(self, records: Sequence[TrialRecord], confirmation: Confirmation | None) -> str:
        if confirmation is not None:
            return confirmation.sentence
        if self.spec.confirm.rounds == 0:
            return "nothing was confirmed (confirm.rounds is 0), so nothing is claimed; see the front"
        if not front_of(records, self.objectives):
            return self._none_held(records)
        return "no configuration of the search was better"

    def _none_held(self, records: Sequence[TrialRecord]) -> str:
        measured = [record for record in records if isinstance(record.outcome, Measured)]
        nearest = min(measured, key=self.objectives.rank, default=None)
        missed = reason_of(nearest, self.objectives) if nearest is not None else ""
        if nearest is None or not missed:
            return "no configuration held all limits"
        where = f"trial {nearest.number}, {missed}"
        return f"no configuration held all limits, nor does what you run today; the nearest was {where}"

    def summary(
        self, records: Sequence[TrialRecord], confirmation: Confirmation | None, recommendation: Recommendation | None
    ) -> tuple[str, ...]:
        """Sentences for a newcomer: what was done, what came out, what it rests on."""
        if recommendation is None:
            return ("Nothing could be measured.",)
        taken = [record for record in records if record.proposal.origin == TAKEN_OVER]
        kinds = [record.outcome.kind for record in records if record.proposal.origin != TAKEN_OVER]
        measured, refused = kinds.count("measured"), kinds.count("infeasible")
        counts = (count_text(measured, "measurement"), f"{count_text(refused, 'configuration')} that cannot serve")
        lines = [f"{', '.join(counts)}, {count_text(kinds.count('broken'), 'fault')}."]
        if taken:
            lines[0] += f" {len(taken)} more were taken over from an earlier study; no claim rests on them."
        if self.spec.engine.kind == "simulated":
            lines[0] += " The engine was simulated: these figures are no measurements of a GPU."
        if recommendation.proven and confirmation is not None:
            changes = changes_text(recommendation.config, self.baseline)
            lines.append(f"Recommended: {changes}")
            lines.append(f"{_sentence(recommendation.sentence)}, all on fresh starts.")
            lines.extend(_gain_line(gain) for gain in recommendation.gains)
            lines.extend(f"  over {name}: {sentence}" for name, sentence in recommendation.against)
            lines.extend(f"  {name}: {sentence}" for name, sentence in recommendation.effects)
            lines.append(f"  quality: {recommendation.quality}")
        else:
            lines.append(f"Keep what you run today. {_sentence(recommendation.sentence)}.")
            lines.extend(f"  today's over {name}: {sentence}" for name, sentence in recommendation.against)
        lines.extend(self._neighbours(records))
        return tuple(lines)

    def _neighbours(self, records: Sequence[TrialRecord]) -> Iterator[str]:
        """What the checks said of trials that ran at the same time."""
        for places in levels(self.checked_places):
            found = judge(records, self.objectives, places, self.spec.hardware.neighbour_limit)
            if found.verdict == "open":
                return
            yield f"Trials at the same time: {found.sentence}."


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _gain_line(gain: tuple[str, float, float, float]) -> str:
    label, ratio, low, high = gain
    return f"  {label}: better by x{ratio:.3f} [{low:.3f}, {high:.3f}] (below 1 is worse)"


def _trial_of(config: EngineConfig, records: Sequence[TrialRecord]) -> int:
    """The first measurement of `config`; -1 where there is none."""
    return next((r.number for r in records if r.config == config and isinstance(r.outcome, Measured)), -1)


def _quality(winner: ArmResult, records: Sequence[TrialRecord]) -> str:
    for record in reversed(records):
        if record.config == winner.config and isinstance(record.outcome, Measured) and record.outcome.quality:
            return evidence(record.outcome.quality)
    return "answers were not compared (quality.enabled is false)"
