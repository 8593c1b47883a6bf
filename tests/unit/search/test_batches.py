"""Proposals while others are being measured: nothing twice, no neighbour, neighbours where nothing else is left."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from autotune.outcome import Proposal, TrialRecord
from autotune.search.proposer import Proposer, create_proposer
from autotune.search.screen import Screen, Tried
from autotune.space.config import EngineConfig
from autotune.space.space import Parameter, SearchSpace
from autotune.testing.toy import BASELINE, OBJECTIVES, measured, outcome_of, play, record_of, toy_space

PLACES = 4


def proposer_of(name: str, space: SearchSpace | None = None, live: tuple[str, ...] = ()) -> Proposer:
    return create_proposer(
        name, space or toy_space(), OBJECTIVES, EngineConfig(), 5, (), lambda _: None, BASELINE, live=live
    )


def batch(proposer: Proposer, records: Sequence[TrialRecord], count: int = PLACES) -> list[Proposal]:
    running: list[Proposal] = []
    for place in range(count):
        proposal = proposer.propose(records, running=running, place=place)
        assert proposal is not None
        running.append(proposal)
    return running


@pytest.mark.parametrize("name", ["auto", "local", "tpe", "nsga2", "random", "grid"])
def test_no_two_of_a_batch_are_neighbours(name: str) -> None:
    proposer = proposer_of(name)
    screen = Screen(toy_space(), EngineConfig(), lambda _: None)
    records = play(proposer, 9)
    for _ in range(3):
        running = batch(proposer, records)
        keys = [screen.key(dict(one.point)) for one in running]
        assert len(set(keys)) == PLACES
        for index, key in enumerate(keys):
            assert not any(other in screen.steps(key) for other in keys[:index])
        records += [record_of(len(records) + place, one, outcome_of(one.config)) for place, one in enumerate(running)]


def test_a_neighbour_is_one_step_of_one_ladder() -> None:
    screen = Screen(toy_space(), EngineConfig(), lambda _: None)
    point = {"seqs": 64, "batched": 2048, "weights": "none", "graph": "none"}

    def near(**changes: int | str) -> bool:
        return screen.key({**point, **changes}) in set(screen.steps(screen.key(point)))

    assert near(seqs=128) and near(batched=1024)
    assert not near(seqs=256), "two steps"
    assert not near(seqs=128, batched=1024), "two settings"
    assert not near(weights="fp8"), "another value of a choice is no neighbour"
    assert not near(graph="full"), "it has a setting more"
    assert not near()


@pytest.mark.parametrize("name", ["auto", "local", "tpe", "nsga2", "random", "grid"])
def test_where_only_neighbours_are_left_one_of_them_is_measured(name: str) -> None:
    """A ladder of three: with the middle one running, both others are neighbours."""
    space = SearchSpace("three", (Parameter("seqs", "ladder", (16, 32, 64), ordered=True),))
    proposer = proposer_of(name, space)
    records = [record_of(0, Proposal(BASELINE, origin="baseline"), measured({"output_throughput": 1.0}))]
    middle = Proposal(space.config({"seqs": 32}, EngineConfig()), (("seqs", 32),))
    found = proposer.propose(records, running=[middle])
    assert found is not None and dict(found.point)["seqs"] in (16, 64)


def test_a_pending_point_lowers_what_is_expected_around_it_and_nothing_else_gets_better() -> None:
    from autotune.search.acquisition import Expectation, Sample
    from autotune.search.features import Features

    space = toy_space()
    records = play(proposer_of("random"), 14)
    samples = [Sample(one, dict(one.proposal.point)) for one in records if one.proposal.point]
    features = Features(space)
    best = {"seqs": 256, "batched": 4096, "weights": "fp8", "graph": "none"}
    before, _ = Expectation(samples, features, OBJECTIVES, 1).gain([best])
    after, _ = Expectation(samples, features, OBJECTIVES, 1, pending=[best]).gain([best])
    assert after[0] < 0.5 * before[0]


def test_a_live_change_is_cheap_only_at_the_place_where_its_engine_runs() -> None:
    from autotune.search.proposer import Setting
    from autotune.search.restart import PointCosts

    space = toy_space()
    screen = Screen(space, EngineConfig(), lambda _: None)
    setting = Setting(screen, OBJECTIVES, BASELINE, 1, frozenset({"seqs"}))
    point = {"seqs": 64, "batched": 2048, "weights": "none", "graph": "none"}
    proposal = screen.candidate(point, Tried(frozenset())).proposal("sampler")
    here = record_of(0, proposal, measured({"output_throughput": 1.0, "ttft_p95_ms": 1.0}))
    history = [replace(here, place=1)]
    smaller = screen.key({**point, "seqs": 32})
    assert PointCosts(setting, history, 1).kind(smaller) == "live change"
    assert PointCosts(setting, history, 0).kind(smaller) == "new process"
