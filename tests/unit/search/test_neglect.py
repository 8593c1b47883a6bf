"""What a search is reminded of when it has stopped getting better, and how it changes a running engine."""

from __future__ import annotations

from autotune.outcome import Proposal
from autotune.search.neglect import neglected_choices, neglected_ends
from autotune.search.proposer import Setting
from autotune.search.restart import PointCosts
from autotune.search.screen import Screen
from autotune.space.config import EngineConfig, FrozenValue
from autotune.testing.toy import BASELINE, OBJECTIVES, outcome_of, record_of, toy_space

LIVE = frozenset({"seqs", "batched"})
SPACE = toy_space()
GOOD: dict[str, FrozenValue] = {"seqs": 256, "batched": 8192, "weights": "fp8", "graph": "full", "capture": 256}


def test_a_choice_that_was_only_measured_far_from_the_best_is_neglected() -> None:
    bad: dict[str, FrozenValue] = {"seqs": 16, "batched": 512, "weights": "int4", "graph": "full", "capture": 16}
    assert neglected_choices(SPACE, [GOOD], [GOOD, bad]) == [{**GOOD, "weights": "int4"}]
    beside = {**GOOD, "weights": "int4", "seqs": 128}
    assert neglected_choices(SPACE, [GOOD], [GOOD, bad, beside]) == [], "one step of a ladder away is beside it"


def test_a_choice_that_was_never_measured_is_left_to_the_model() -> None:
    assert neglected_choices(SPACE, [GOOD], [GOOD]) == []


def test_an_end_is_neglected_until_its_live_settings_were_measured_together() -> None:
    end = {**GOOD, "batched": 512}
    other = {**GOOD, "batched": 512, "seqs": 64}
    assert neglected_ends(LIVE, [end], [GOOD, other]) == [end]
    assert neglected_ends(LIVE, [end], [GOOD, {**end, "weights": "none"}]) == []


def costs(*points: dict[str, FrozenValue]) -> PointCosts:
    """After these were measured, one after the other, on the engine that the first one started."""
    screen = Screen(SPACE, EngineConfig(), lambda _: None)
    setting = Setting(screen, OBJECTIVES, BASELINE, 0, LIVE)
    history = []
    for number, point in enumerate(points):
        key = screen.key(point)
        proposal = Proposal(screen.config(key), key, "sampler")
        history.append(record_of(number, proposal, outcome_of(BASELINE), restarted=number == 0))
    return PointCosts(setting, history)


def test_the_ends_beside_a_good_configuration_are_those_of_the_running_engine() -> None:
    lower = {**GOOD, "seqs": 128}
    keys = [Screen(SPACE, EngineConfig(), lambda _: None).key(one) for one in (lower, GOOD)]
    assert costs(GOOD, lower).ends(keys) == [{**lower, "batched": 512}, {**lower, "seqs": 16}]
    assert costs({**GOOD, "weights": "none"}).ends(keys) == [], "another engine runs"


def test_two_live_settings_are_not_changed_at_once() -> None:
    """Seen from everything that was measured on the engine, so that a corner is reached along its edges."""
    key = Screen(SPACE, EngineConfig(), lambda _: None).key
    edge, corner = {**GOOD, "batched": 512}, {**GOOD, "batched": 512, "seqs": 16}
    assert costs(GOOD).leaps(key(corner))
    assert not costs(GOOD).leaps(key(edge))
    assert not costs(GOOD, edge).leaps(key(corner))
    assert not costs(GOOD).leaps(key({**corner, "weights": "none"})), "a start may change what it likes"
