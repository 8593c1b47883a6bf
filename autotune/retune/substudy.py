"""The studies that re-tuning makes out of one study: a smaller one against the incumbent, and the canary. All pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.decision import Rules
from autotune.outcome import Infeasible, Proposal, TrialRecord
from autotune.retune.ledger import Profile, Tuning
from autotune.search.confirm import ConfirmRun
from autotune.space.config import EngineConfig, FrozenValue
from autotune.spec.part import ArgValue
from autotune.spec.retune import RetuneSpec
from autotune.spec.study import BaselineSpec, LengthSpec, LoadSpec, StudySpec

SEARCH_SHARE = 0.6
"""Share of a pass's time for the search; the rest is for the confirmation, which decides."""
INPUT_FILE, OUTPUT_FILE = "input-tokens.json", "output-tokens.json"


def retune_spec(
    spec: StudySpec, retune: RetuneSpec, tuning: Tuning, incumbent: EngineConfig, folder: Path, seconds: float
) -> StudySpec:
    """A small study against the incumbent.

    Args:
        spec: the study.
        retune: its `retune` part.
        tuning: why and for what.
        incumbent: becomes the baseline.
        folder: of the new study; the histograms of a moved workload lie there.
        seconds: time that is left.
    """
    search = spec.search.model_copy(
        update={
            "trials": retune.budget.configurations,
            "wall_clock": seconds * SEARCH_SHARE,
            "gpu_hours": retune.budget.gpu_hours,
        }
    )
    load = _moved(spec.load, tuning.profile, folder) if tuning.moved and tuning.profile else spec.load
    return spec.model_copy(
        update={
            "name": retune_name(spec, folder),
            "baseline": baseline_of(spec, incumbent),
            "load": load,
            "search": search,
            "confirm": spec.confirm.model_copy(update={"rounds": max(2, spec.confirm.rounds), "against": {}}),
            "storage": str(folder.absolute()),
            "retune": None,
        }
    )


def retune_name(spec: StudySpec, folder: Path) -> str:
    """Name of the study of a re-tuning."""
    return f"{spec.name[:48]}-retune-{folder.name}"


def canary_spec(spec: StudySpec, incumbent: EngineConfig, folder: Path) -> StudySpec:
    """A study that searches nothing; `CanaryRules` says what it measures."""
    return spec.model_copy(
        update={
            "name": f"{spec.name[:48]}-{folder.name}", "baseline": baseline_of(spec, incumbent),
            "storage": str(folder.absolute()), "retune": None,
            "quality": spec.quality.model_copy(update={"enabled": False}),
        }
    )  # fmt: skip


def baseline_of(spec: StudySpec, incumbent: EngineConfig) -> BaselineSpec:
    """The incumbent as a study's baseline. What it leaves out although the study fixes it is taken back by a null."""
    args: dict[str, ArgValue] = {name: _plain(value) for name, value in incumbent.args}
    fixed = EngineConfig.of(dict(spec.engine.args))
    args.update({name: None for name, _ in fixed.args if name not in args})
    return BaselineSpec(args=args, env=dict(incumbent.env))


def _plain(value: FrozenValue) -> ArgValue:
    return list(value) if isinstance(value, tuple) else value


def _moved(load: LoadSpec, profile: Profile, folder: Path) -> LoadSpec:
    """The load with the lengths that users have now, and with their rate where the load is a rate."""
    update: dict[str, object] = {
        "input_tokens": LengthSpec(kind="empirical", file=str((folder / INPUT_FILE).absolute())),
        "output_tokens": LengthSpec(kind="empirical", file=str((folder / OUTPUT_FILE).absolute())),
    }
    if load.arrivals in ("constant", "poisson", "gamma") and profile.rate and load.knee is None:
        factor = profile.rate / max(load.levels)
        update["levels"] = [level * factor for level in load.levels]
    return load.model_copy(update=update)


@dataclass(frozen=True)
class CanaryRules(Rules):
    """Measures incumbent and baseline in turn on fresh starts, and decides nothing.

    Attributes:
        incumbent, reference: the two; they may be the same.
        rounds: of each.
    """

    incumbent: EngineConfig
    reference: EngineConfig
    rounds: int = 3

    def baseline_due(self, records: Sequence[TrialRecord]) -> Proposal | None:
        """Never: what cannot serve any more is a finding of the canary, not the end of a study."""
        return None

    def stop_reason(self, records: Sequence[TrialRecord], elapsed: float) -> str | None:
        """Nothing is searched."""
        return "a canary searches nothing"

    def confirmation_runs(self, records: Sequence[TrialRecord]) -> list[ConfirmRun]:
        """Incumbent and baseline; who begins changes from round to round. An incumbent that cannot serve is enough."""
        if any(isinstance(one.outcome, Infeasible) and one.config.hash == self.incumbent.hash for one in records):
            return []
        arms = list(dict.fromkeys((self.incumbent, self.reference)))
        return [
            ConfirmRun(number, Proposal(config, origin="confirm", note="canary"), self.spec.load.seed + 1000 + number)
            for number in range(self.rounds)
            for config in (arms if number % 2 == 0 else arms[::-1])
        ]

    def next_undo(self, records: Sequence[TrialRecord]) -> Proposal | None:
        """Nothing is undone."""
        return None
