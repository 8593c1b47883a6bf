"""Layouts are compared at one limit of the whole engine: what is a replica's own is carried over and not blamed."""

from __future__ import annotations

import random

import numpy as np
import pytest

from autotune.outcome import Outcome, Proposal, TrialRecord
from autotune.search.features import Features
from autotune.search.local import mutate
from autotune.search.neglect import neglected_layouts
from autotune.search.proposer import create_proposer
from autotune.search.screen import Screen
from autotune.search.surrogate import Surrogate
from autotune.search.whole import WholeLimit
from autotune.space.config import EngineConfig, FrozenValue
from autotune.space.space import Parameter, SearchSpace
from autotune.testing.toy import OBJECTIVES, measured, record_of

SEQUENCES = Parameter("max_num_seqs", "ladder", (32, 64, 128, 256, 512, 1024), ordered=True)
LAYOUT = Parameter("layout", "layout", ("tp8-dp1", "tp4-dp2", "tp1-dp8", "tp1-dp8-ep"))
OTHERS = (
    Parameter("block_size", "ladder", (16, 32, 64, 128), ordered=True),
    Parameter("kv_cache_dtype", "choice", ("auto", "fp8")),
)
SPACE = SearchSpace("eight", (LAYOUT, SEQUENCES, *OTHERS))


def whole_of(*parameters: Parameter) -> WholeLimit | None:
    return WholeLimit.of(SearchSpace("some", parameters))


def point(layout: str, sequences: int, **more: FrozenValue) -> dict[str, FrozenValue]:
    return {"layout": layout, "max_num_seqs": sequences, "block_size": 16, "kv_cache_dtype": "auto", **more}


@pytest.fixture
def whole() -> WholeLimit:
    found = WholeLimit.of(SPACE)
    assert found is not None
    return found


def test_it_exists_where_replicas_and_their_limit_are_searched() -> None:
    assert whole_of(SEQUENCES) is None, "one layout"
    assert whole_of(LAYOUT) is None, "one limit"
    alike = Parameter("layout", "layout", ("tp4-dp2", "tp4-dp2-ep"))
    assert whole_of(alike, SEQUENCES) is None, "as many replicas everywhere"
    open_limit = Parameter("max_num_seqs", "ladder", (None, 64, 128), ordered=True)
    assert whole_of(LAYOUT, open_limit) is None, "what vLLM chooses is not known here"


def test_fewer_replicas_take_over_what_the_others_took_in(whole: WholeLimit) -> None:
    assert whole.at(point("tp1-dp8", 64)) == 512
    assert whole.at({"layout": "tp1-dp8"}) is None
    assert whole.kept(point("tp1-dp8", 64), "tp8-dp1") == 512
    assert whole.kept(point("tp1-dp8", 256), "tp8-dp1") == 1024, "the ladder's end"
    assert whole.kept(point("tp8-dp1", 256), "tp1-dp8") == 256, "more replicas take in more"
    assert whole.moved(point("tp4-dp2", 128), "tp8-dp1") == point("tp8-dp1", 256)


def test_a_model_sees_the_limit_that_the_load_meets() -> None:
    features = Features(SPACE)
    column = features.names.index("max_num_seqs")
    rows = features.encode([point("tp8-dp1", 512), point("tp1-dp8", 64), point("tp8-dp1", 32), point("tp1-dp8", 1024)])
    assert rows[0, column] == pytest.approx(rows[1, column])
    assert (rows[2, column], rows[3, column]) == (0.0, 1.0)
    alone = Features(SearchSpace("one", (SEQUENCES, *OTHERS)))
    np.testing.assert_allclose(alone.encode([{"max_num_seqs": 64, "block_size": 16}])[0, 0], 0.2)


def test_a_changed_layout_keeps_either_limit() -> None:
    screen = Screen(SPACE, EngineConfig(), lambda _: None)
    rng = random.Random(1)
    drawn = (mutate(screen, point("tp1-dp8", 64), rng, 1) for _ in range(400))
    assert {one["max_num_seqs"] for one in drawn if one["layout"] == "tp8-dp1"} == {64, 512}
    drawn = (mutate(screen, point("tp8-dp1", 256), rng, 1) for _ in range(400))
    assert {one["max_num_seqs"] for one in drawn if one["layout"] == "tp1-dp8"} == {256}


def test_a_layout_that_was_only_measured_behind_a_queue_is_neglected(whole: WholeLimit) -> None:
    good, queued = point("tp1-dp8", 128), point("tp8-dp1", 256, block_size=64)
    assert neglected_layouts(whole, [good], [good, queued]) == [point("tp8-dp1", 1024)]
    assert neglected_layouts(whole, [good], [good]) == [], "what was never measured is left to the model"
    assert neglected_layouts(whole, [good], [good, queued, point("tp8-dp1", 1024, block_size=128)]) == []


def queueing(layout: str, sequences: int) -> Outcome:
    """Some 600 requests are in flight; one replica over all GPUs answers first where it takes them in."""
    full = sequences * (8 if "dp8" in layout else 2 if "dp2" in layout else 1)
    ttft = 50.0 if layout == "tp8-dp1" else 100.0
    return measured({
        "output_throughput": 1000.0 * min(full / 600, 1.0), "ttft_p95_ms": ttft if full >= 512 else 50_000.0
    })  # fmt: skip


def test_a_search_that_is_stuck_tries_a_starved_layout_with_what_the_best_takes_in() -> None:
    baseline = SPACE.config(point("tp8-dp1", 256), EngineConfig())
    proposer = create_proposer("auto", SPACE, OBJECTIVES, EngineConfig(), 3, (), lambda _: None, baseline)
    points = [point("tp8-dp1", 256), *(point("tp8-dp1", 256, block_size=size) for size in (32, 64))]
    points += [point("tp1-dp8", 128, block_size=size) for size in (16, 32, 64, 128)]
    points += [point("tp1-dp8", 128, block_size=size, kv_cache_dtype="fp8") for size in (16, 32, 64, 128)]
    records: list[TrialRecord] = []
    for one in points:
        proposal = Proposal(SPACE.config(one, EngineConfig()), tuple(sorted(one.items())), "sampler")
        outcome = queueing(str(one["layout"]), int(str(one["max_num_seqs"])))
        records.append(record_of(len(records), proposal, outcome))
    found = proposer.propose(records)
    assert found is not None
    assert (dict(found.point)["layout"], dict(found.point)["max_num_seqs"]) == ("tp8-dp1", 1024)


def test_what_was_cut_off_leaves_a_choice_open() -> None:
    """Five hopeless rows of one choice, also low on a ladder: the choice is not known to be bad at the ladder's top."""
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.random(16), np.r_[np.zeros(5), np.ones(11)]])
    rows[:5, 0] = 0.1
    targets = np.r_[np.full(5, 2.0), 1 - rows[5:, 0]]
    codes, there = np.array([False, True]), np.array([[1.0, 0.0]])
    sure = Surrogate(rows, targets, codes)
    open_ = Surrogate(rows, targets, codes, vague=np.arange(16) < 5)
    assert open_.predict(there)[0][0] < sure.predict(there)[0][0] - 0.2
    assert open_.predict(there)[1][0] > sure.predict(there)[1][0]
