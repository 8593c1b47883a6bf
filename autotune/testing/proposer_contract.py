"""What every proposer must do. Subclass `ProposerContract`, provide `make`, and inherit all cases.

class TestMine(ProposerContract):
    def make(self, setup: Setup) -> Proposer:
        return MyProposer(setup.space, setup.objectives, ...)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from autotune.outcome import Broken, Infeasible, Measured, Outcome, Proposal
from autotune.search.objectives import Objectives
from autotune.search.proposer import Proposer
from autotune.space.config import EngineConfig
from autotune.space.experts import Expert
from autotune.space.space import Parameter, SearchSpace
from autotune.testing.toy import BASELINE, OBJECTIVES, measured, outcome_of, play, record_of, toy_space

TRIALS = 24
CRASH_SHARE = 0.34
"""Largest share of crashes on a surface where 40 % of the box crash; a random search has 40 %."""


@dataclass(frozen=True)
class Setup:
    """What a proposer is made from in a test."""

    space: SearchSpace = field(default_factory=toy_space)
    objectives: Objectives = OBJECTIVES
    seed: int = 3
    experts: tuple[Expert, ...] = ()
    refuse: Callable[[EngineConfig], str | None] = lambda _: None
    baseline: EngineConfig = BASELINE


class ProposerContract:
    """The cases. `crash_share` bounds the share of crashes; proposers that do not learn set it to None."""

    crash_share: float | None = CRASH_SHARE

    def make(self, setup: Setup) -> Proposer:
        """The proposer under test."""
        raise AssertionError("a contract suite provides make()")

    def test_the_baseline_comes_first_and_experts_follow(self) -> None:
        expert = Expert(
            {"seqs": 128, "batched": 4096, "weights": "fp8", "graph": "none"}, "wide steps", "why", "a source"
        )
        records = play(self.make(Setup(experts=(expert,))), 3)
        assert records[0].proposal.origin == "baseline" and records[0].config == BASELINE
        assert records[1].proposal.origin == "expert" and "wide steps" in records[1].proposal.note
        assert records[1].config.get("weights") == "fp8"
        assert records[2].proposal.origin not in ("baseline", "expert")

    def test_every_proposal_is_new_legal_and_complete(self) -> None:
        setup = Setup()
        records = play(self.make(setup), TRIALS)
        assert len(records) == TRIALS
        assert len({record.config.hash for record in records}) == TRIALS
        for record in records[1:]:
            point = dict(record.proposal.point)
            assert setup.space.violations(point) == ()
            assert setup.space.canonical(point) == dict(point)
            assert setup.space.config(point, EngineConfig()).hash == record.config.hash

    def test_refused_configurations_are_never_proposed(self) -> None:
        def refuse(config: EngineConfig) -> str | None:
            return "no int4 here" if config.get("weights") == "int4" else None

        records = play(self.make(Setup(refuse=refuse)), TRIALS)
        assert len(records) == TRIALS
        assert all(record.config.get("weights") != "int4" for record in records)

    def test_the_same_seed_gives_the_same_study(self) -> None:
        first = play(self.make(Setup()), TRIALS)
        second = play(self.make(Setup()), TRIALS)
        assert [one.config.hash for one in first] == [one.config.hash for one in second]

    def test_a_study_killed_at_any_moment_goes_on_as_if_nothing_had_happened(self) -> None:
        whole = play(self.make(Setup()), TRIALS)
        for cut in (1, 7, 15):
            resumed = play(self.make(Setup()), TRIALS, history=whole[:cut])
            assert [one.config.hash for one in resumed] == [one.config.hash for one in whole]

    def test_what_runs_now_is_not_proposed_again(self) -> None:
        proposer = self.make(Setup())
        records = play(proposer, 8)
        running: list[Proposal] = []
        for _ in range(4):
            proposal = proposer.propose(records, running=running)
            assert proposal is not None
            running.append(proposal)
        assert len({one.config.hash for one in running}) == 4

    def test_a_fault_of_ours_is_tried_again_but_not_for_ever(self) -> None:
        proposer = self.make(Setup())
        records = play(proposer, 4)
        broken: Outcome = Broken("port_taken", "somebody sits on the port")
        hashes = []
        for _ in range(4):
            proposal = proposer.propose(records)
            assert proposal is not None
            hashes.append(proposal.config.hash)
            records.append(record_of(len(records), proposal, broken))
        assert hashes[0] == hashes[1] == hashes[2] != hashes[3]

    def test_quarantined_values_are_left_alone(self) -> None:
        def outcome(config: EngineConfig) -> Outcome:
            if config.get("weights") == "int4":
                return Infeasible("refused", "no kernel", quarantine=(("weights", "int4"),))
            return outcome_of(config)

        records = play(self.make(Setup()), TRIALS, outcome)
        assert sum(record.config.get("weights") == "int4" for record in records) <= 1

    def test_a_small_space_is_exhausted_and_says_so(self) -> None:
        space = SearchSpace("tiny", (Parameter("seqs", "ladder", (64, 128), ordered=True),))
        baseline = EngineConfig.of({"seqs": 64, "batched": 2048, "weights": "none", "graph": "none"})
        proposer = self.make(Setup(space=space, baseline=baseline))
        records = play(proposer, 10, lambda config: measured({"output_throughput": 9.0, "ttft_p95_ms": 9.0}))
        assert len(records) < 10 and proposer.propose(records) is None

    def test_crashes_are_learnt_from(self) -> None:
        records = [one for seed in (1, 2, 3) for one in play(self.make(Setup(seed=seed)), 40)[1:]]
        crashed = sum(not isinstance(record.outcome, Measured) for record in records)
        if self.crash_share is not None:
            assert crashed / len(records) <= self.crash_share
        else:
            assert 0 < crashed < len(records)
