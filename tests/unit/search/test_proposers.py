"""Every proposer passes the contract; what is special about one is tested below."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.errors import EnvironmentFault, SpecError
from autotune.outcome import Infeasible, TrialRecord
from autotune.search.front import feasible_hypervolume
from autotune.search.proposer import Proposer, create_proposer
from autotune.search.restart import running_engine
from autotune.search.samplers import require_gp
from autotune.space.config import EngineConfig
from autotune.space.experts import Expert
from autotune.testing.proposer_contract import ProposerContract, Setup
from autotune.testing.toy import BASELINE, OBJECTIVES, crashes, outcome_of, play, record_of, toy_space
from benchmarks.search.arms import ARMS, proposer_of
from benchmarks.search.simulator import SIMULATOR, SimulatorStudy

HAS_GP = all(importlib.util.find_spec(name) is not None for name in ("torch", "scipy"))


def make(name: str, setup: Setup, live: tuple[str, ...] = ()) -> Proposer:
    return create_proposer(
        name,
        setup.space,
        setup.objectives,
        EngineConfig(),
        setup.seed,
        setup.experts,
        setup.refuse,
        setup.baseline,
        live=live,
    )


class TestAuto(ProposerContract):
    crash_share = 0.25

    def make(self, setup: Setup) -> Proposer:
        return make("auto", setup)


class TestAutoLive(ProposerContract):
    crash_share = 0.25

    def make(self, setup: Setup) -> Proposer:
        return make("auto", setup, live=("seqs", "batched"))


class TestLocal(ProposerContract):
    crash_share = 0.32

    def make(self, setup: Setup) -> Proposer:
        return make("local", setup)


class TestTpe(ProposerContract):
    def make(self, setup: Setup) -> Proposer:
        return make("tpe", setup)


class TestNsga2(ProposerContract):
    def make(self, setup: Setup) -> Proposer:
        return make("nsga2", setup)


class TestRandom(ProposerContract):
    crash_share = None

    def make(self, setup: Setup) -> Proposer:
        return make("random", setup)


class TestGrid(ProposerContract):
    crash_share = None

    def make(self, setup: Setup) -> Proposer:
        return make("grid", setup)


@pytest.mark.skipif(not HAS_GP, reason="needs the extra gp")
class TestGp(ProposerContract):
    def make(self, setup: Setup) -> Proposer:
        return make("gp", setup)


def test_forty_percent_of_the_toy_crash() -> None:
    """The bound in the contract means something only if a random configuration often crashes."""
    space = toy_space()
    records = play(make("random", Setup(seed=11)), 200)
    share = sum(crashes(dict(record.config.args)) for record in records) / len(records)
    assert space.size == 648
    assert 0.3 <= share <= 0.5


def test_an_unknown_name_lists_the_legal_ones() -> None:
    with pytest.raises(SpecError, match="legal: auto, tpe, gp, nsga2, random, grid, local"):
        make("annealing", Setup())


@pytest.mark.skipif(HAS_GP, reason="the extra is installed")
def test_gp_without_its_extra_says_what_to_install() -> None:
    with pytest.raises(EnvironmentFault, match=r"vllm-autotune\[gp\]"):
        require_gp()


def test_local_says_what_it_changed() -> None:
    records = play(make("local", Setup()), 12)
    notes = [record.proposal.note for record in records if record.proposal.origin == "mutation"]
    assert len(notes) > 5
    assert all(note.startswith("trial ") and " with " in note and "→" in note for note in notes)


def test_auto_beats_random_on_the_toy() -> None:
    """Mean feasible hypervolume of 20 trials over six seeds, from the same start."""

    def volume(name: str) -> float:
        studies = [play(make(name, Setup(seed=seed)), 20) for seed in range(6)]
        return sum(feasible_hypervolume(one, OBJECTIVES, (-4.0, 6.5)) for one in studies) / len(studies)

    assert volume("auto") > 1.02 * volume("random")


def live_changes(live: tuple[str, ...]) -> list[str]:
    """Notes of the trials that needed no restart, where a restart costs forty times a measurement."""
    limits = ("seqs", "batched")
    proposer = make("auto", Setup(), live=live)
    records: list[TrialRecord] = []
    for number in range(30):
        proposal = proposer.propose(records)
        assert proposal is not None
        engine = running_engine(records)
        reached = engine is not None and engine.reaches(proposal.config, limits)
        seconds = 12.0 if reached else 400.0
        outcome = outcome_of(proposal.config)
        records.append(record_of(number, proposal, outcome, seconds=seconds, restarted=not reached))
    return [one.proposal.note for one in records if not one.restarted and one.proposal.origin == "sampler"]


def test_auto_fills_a_restart_group_with_live_changes() -> None:
    """Knowing what can be changed live, it does so far more often than by chance, and says so."""
    knowing, by_chance = live_changes(("seqs", "batched")), live_changes(())
    assert len(knowing) >= 5 and len(knowing) >= 2 * len(by_chance)
    assert all("live change" in note for note in knowing)


def test_experts_that_one_engine_can_become_follow_each_other() -> None:
    """The one with the highest limits first, so that the other needs no start; without live changes in their order."""
    narrow = {"seqs": 64, "batched": 2048, "weights": "fp8", "graph": "full", "capture": 64}
    points = {"narrow": narrow, "int4": {**narrow, "weights": "int4"}, "wide": {**narrow, "seqs": 128, "batched": 4096}}
    setup = Setup(experts=tuple(Expert(point, name, "", "a source") for name, point in points.items()))

    def order(live: tuple[str, ...]) -> list[str]:
        return [record.proposal.note for record in play(make("auto", setup, live), 4)[1:]]

    assert order(("seqs", "batched")) == ["wide", "narrow", "int4"]
    assert order(()) == ["narrow", "int4", "wide"]


def test_auto_tries_known_good_settings_on_top_of_what_clearly_helped() -> None:
    """One that contradicts it is tried as it is, and the other proposers try all of them so."""
    today = dict(BASELINE.args)
    changes = ({"weights": "fp8"}, {"capture": 16}, {"seqs": 16, "weights": "int4"}, {"batched": 1024})
    experts = tuple(Expert({**today, **change}, f"expert {index}", "", "x") for index, change in enumerate(changes))

    def tried(name: str) -> list[dict[str, object]]:
        records = play(make(name, Setup(experts=experts)), 5)[1:]
        assert [one.proposal.note.split(":")[0] for one in records] == [one.name for one in experts]
        return [{key: value for key, value in one.config.args if today[key] != value} for one in records]

    assert tried("random") == list(changes)
    first, on_top, alone, last = tried("auto")
    assert (first, alone) == (changes[0], changes[2])
    assert on_top == {"weights": "fp8", "capture": 16}
    assert last["batched"] == 1024 and last["weights"] == "fp8"
    notes = [one.proposal.note for one in play(make("auto", Setup(experts=experts)), 3)]
    assert "on top of trial 1" in notes[2]


def test_what_makes_no_difference_is_not_taken_along() -> None:
    """And a setting whose changes another one has as well is tried all the same."""
    today = dict(BASELINE.args)
    changes = ({"weights": "fp8", "capture": 16}, {"weights": "fp8"}, {"batched": 1024})
    experts = tuple(Expert({**today, **change}, f"expert {index}", "", "x") for index, change in enumerate(changes))
    last = play(make("auto", Setup(experts=experts)), 4)
    tried = [{key: value for key, value in one.config.args if today[key] != value} for one in last[1:]]
    assert tried == [changes[0], changes[1], {"weights": "fp8", "batched": 1024}]


def test_what_is_being_tried_on_top_at_another_place_is_not_tried_again() -> None:
    today = dict(BASELINE.args)
    experts = tuple(Expert({**today, **one}, str(one), "", "x") for one in ({"weights": "fp8"}, {"batched": 1024}))
    proposer = make("auto", Setup(experts=experts))
    records = play(proposer, 2)
    beside = proposer.propose(records)
    assert beside is not None and beside.origin == "expert"
    further = proposer.propose(records, running=[beside])
    assert further is not None and further.origin != "expert"


def test_auto_copes_with_a_baseline_outside_of_the_space() -> None:
    setup = Setup(baseline=EngineConfig.of({"something_else": 7}))
    records = play(make("auto", setup), 14, lambda config: outcome_of(BASELINE if config == setup.baseline else config))
    assert len(records) == 14 and records[0].proposal.point == ()


def test_auto_goes_on_when_nothing_works() -> None:
    records = play(make("auto", Setup()), 15, lambda _: Infeasible("oom_start", "too large"))
    assert len({record.config.hash for record in records}) == 15


def test_the_same_seed_gives_the_same_study_on_the_simulator() -> None:
    """Proposals, live changes and figures; another seed gives another study."""

    def played(seed: int) -> list[tuple[str, bool, object]]:
        study = SimulatorStudy(SIMULATOR, seed, live=True)
        proposer = proposer_of(next(arm for arm in ARMS if arm.name == "auto"), study)
        for _ in range(12):
            proposal = proposer.propose(study.history)
            assert proposal is not None
            study.run(proposal)
        return [(record.config.hash, record.restarted, record.outcome) for record in study.history]

    first = played(3)
    assert first == played(3)
    assert [one[0] for one in first] != [one[0] for one in played(4)]
    assert not all(restarted for _, restarted, _ in first), "some needed no new process"


OVERHEAD = """
import random, time
from autotune.outcome import Proposal
from autotune.search.proposer import create_proposer
from autotune.search.screen import Screen
from autotune.space.config import EngineConfig
from autotune.space.experts import Expert
from autotune.testing.toy import measured, record_of
from benchmarks.search.study import OBJECTIVES, baseline_point, space_of
from benchmarks.search.surfaces import MOE8
space, rng = space_of(MOE8), random.Random(1)
screen = Screen(space, EngineConfig(), lambda config: None)
history = []
while len(history) < 1000:
    key = screen.key(screen.random_point(rng))
    figures = {"output_throughput": 100 + 900 * rng.random(), "ttft_p95_ms": 50 + 500 * rng.random()}
    outcome = measured(figures, level=1.0)
    history.append(record_of(len(history), Proposal(screen.config(key), key), outcome))
baseline = space.config(baseline_point(MOE8), EngineConfig())
history.append(record_of(len(history), Proposal(baseline, origin="baseline"), outcome))
asked = create_proposer("auto", space, OBJECTIVES, EngineConfig(), 1, (), lambda config: None, baseline)
before = time.process_time()
assert asked.propose(history) is not None
print(time.process_time() - before)
"""


@pytest.mark.slow
def test_a_suggestion_after_a_thousand_trials_takes_under_a_second_of_cpu() -> None:
    """In a process of its own, because the number of BLAS threads is fixed when NumPy is loaded."""
    root = Path(__file__).parents[3]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", OVERHEAD], env=environment, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1.0
