"""What is compared: each arm is a way to search a surface within a budget of GPU seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autotune.outcome import Proposal, TrialRecord
from autotune.search.proposer import Proposer, create_proposer
from autotune.search.restart import CostModel
from autotune.space.config import EngineConfig, FrozenValue
from autotune.space.experts import Expert
from benchmarks.search.study import OBJECTIVES, SimulatedStudy


@dataclass(frozen=True)
class Arm:
    """A searcher. `warm`: starts with the five expert settings; `refuse`: asks the memory model before a start."""

    name: str
    proposer: str
    warm: bool = True
    refuse: bool = True
    live: bool = False


ARMS = (
    Arm("auto", "auto", live=True),
    Arm("auto, restarts only", "auto"),
    Arm("local + warm", "local"),
    Arm("tpe + warm", "tpe"),
    Arm("gp + warm", "gp"),
    Arm("nsga2 + warm", "nsga2"),
    Arm("random + warm", "random"),
    Arm("tpe, cold", "tpe", warm=False, refuse=False),
    Arm("random, cold", "random", warm=False, refuse=False),
    Arm("vLLM auto_tune grid", "auto_tune", warm=False, refuse=False),
)


def proposer_of(arm: Arm, study: SimulatedStudy) -> Proposer:
    """The arm's proposer on a fresh study."""
    if arm.proposer == "auto_tune":
        return AutoTuneGrid(study)
    experts = [] if not arm.warm else [
        Expert(point, f"advice {index}", "", "public tuning advice")
        for index, point in enumerate(study.expert_points())
    ]  # fmt: skip
    refuse: Callable[[EngineConfig], str | None] = study.refuse if arm.refuse else lambda _: None
    costs = study.costs
    return create_proposer(
        arm.proposer, study.space, OBJECTIVES, EngineConfig(), study.seed, experts, refuse, study.baseline(),
        live=study.names.live if arm.live else (), compiles=study.names.compiles,
        costs=CostModel(costs.start, costs.compile, costs.live, costs.measure), headroom=study.headroom,
    )  # fmt: skip


class AutoTuneGrid:
    """vLLM's auto_tune.sh: the highest gpu_memory_utilization that boots, then sequences times batched tokens.

    Layout and weights stay what the user runs. Its search over request rates is left out, which is in its favour.
    """

    def __init__(self, study: SimulatedStudy) -> None:
        self._study = study

    def propose(self, history: Sequence[TrialRecord], *, running: Sequence[Proposal] = ()) -> Proposal | None:
        tried = {record.config.hash for record in history}
        for point in self._points(history):
            config = self._study.space.config(point, EngineConfig())
            if config.hash not in tried:
                canonical = self._study.space.canonical(point)
                return Proposal(config, tuple(sorted(canonical.items())), "baseline" if not history else "sampler")
        return None

    def told(self, record: TrialRecord) -> None:
        """Nothing to remember."""

    def _points(self, history: Sequence[TrialRecord]) -> Iterator[Mapping[str, FrozenValue]]:
        base, names = self._study.baseline_point(), self._study.names
        ladder = self._study.space.by_name[names.utilization].values
        yield base
        boots: FrozenValue = None
        for utilization in reversed(ladder):
            point = {**base, names.utilization: utilization}
            config = self._study.space.config(point, EngineConfig())
            record = next((one for one in history if one.config.hash == config.hash), None)
            if record is None:
                yield point
                return
            if record.outcome.kind == "measured":
                boots = utilization
                break
        if boots is None:
            return
        for seqs in (128, 256):
            for batched in (512, 1024, 2048, 4096):
                yield {**base, names.utilization: boots, names.seqs: seqs, names.batched: batched}
