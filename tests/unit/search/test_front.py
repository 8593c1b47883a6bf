"""Properties of the front, the hypervolume and the knee."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.outcome import Infeasible, Proposal, TrialRecord
from autotune.search.front import dominates, front_of, hypervolume, knee_of, non_dominated, recommend
from autotune.space.config import EngineConfig
from autotune.testing.toy import OBJECTIVES, measured, record_of

coordinate = st.integers(0, 6).map(float)


def points(dimension: int) -> st.SearchStrategy[list[list[float]]]:
    return st.lists(st.lists(coordinate, min_size=dimension, max_size=dimension), min_size=1, max_size=9)


def record(number: int, throughput: float, ttft: float, origin: str = "sampler") -> TrialRecord:
    outcome = measured({"output_throughput": throughput, "ttft_p95_ms": ttft})
    return record_of(number, Proposal(EngineConfig.of({"n": number + 1}), origin=origin), outcome)


@given(st.integers(2, 3).flatmap(points))
def test_members_do_not_dominate_each_other_and_every_other_point_is_dominated(rows: list[list[float]]) -> None:
    losses = np.asarray(rows)
    keep = non_dominated(losses)
    front = losses[keep]
    assert not any(dominates(a, b) for a in front for b in front)
    for row in losses[~keep]:
        assert any(dominates(member, row) or (member == row).all() for member in front)
    assert len(np.unique(front, axis=0)) == len(front)


@settings(max_examples=40)
@given(st.integers(1, 4).flatmap(points))
def test_hypervolume_counts_unit_cells(rows: list[list[float]]) -> None:
    """On integer points the volume is the number of unit cells that some point dominates."""
    losses = np.asarray(rows)
    dimension = losses.shape[1]
    cells = np.stack(np.meshgrid(*[np.arange(7)] * dimension, indexing="ij"), axis=-1).reshape(-1, dimension)
    covered = (losses[None, :, :] <= cells[:, None, :]).all(axis=2).any(axis=1).sum()
    assert abs(hypervolume(losses, [7.0] * dimension) - covered) < 1e-9


@given(points(2), st.lists(coordinate, min_size=2, max_size=2))
def test_a_new_point_never_lowers_the_hypervolume(rows: list[list[float]], extra: list[float]) -> None:
    reference = [5.0, 5.0]
    assert hypervolume(np.asarray([*rows, extra]), reference) >= hypervolume(np.asarray(rows), reference) - 1e-12


def test_points_beyond_the_reference_count_nothing() -> None:
    assert hypervolume(np.asarray([[3.0, 1.0], [1.0, 9.0]]), [2.0, 2.0]) == 0.0


@given(st.permutations(range(5)))
def test_the_front_does_not_depend_on_the_order_of_records(order: list[int]) -> None:
    rows = [record(0, 100, 50), record(1, 200, 90), record(2, 150, 95), record(3, 300, 300), record(4, 90, 49)]
    front = front_of([rows[index] for index in order], OBJECTIVES)
    assert [one.number for one in front] == [3, 1, 0, 4]


def test_infeasible_records_are_never_on_the_front() -> None:
    crashed = record_of(1, Proposal(EngineConfig.of({"n": 9})), Infeasible("oom_start", "x"))
    assert [one.number for one in front_of([record(0, 100, 50), crashed], OBJECTIVES)] == [0]


def test_the_knee_is_the_compromise() -> None:
    front = front_of([record(0, 1000, 1000), record(1, 950, 120), record(2, 500, 100)], OBJECTIVES)
    knee = knee_of(front, OBJECTIVES)
    assert knee is not None and knee.number == 1
    assert knee_of(front[:2], OBJECTIVES) is None


def test_the_recommendation_says_when_nothing_better_was_found() -> None:
    baseline = record(0, 100, 50, "baseline")
    assert "nothing better" in recommend([baseline, record(1, 90, 60)], OBJECTIVES).sentence
    found = recommend([baseline, record(1, 150, 60)], OBJECTIVES)
    assert found.best is not None and found.best.number == 1 and "x1.50" in found.sentence
    assert recommend([], OBJECTIVES).sentence == "no configuration held all limits"
