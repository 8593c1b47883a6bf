"""The model of the default search: what it predicts, and how beliefs about two points hang together."""

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.search.surrogate import Surrogate

CODES = np.array([False, False, True, False])


def truth(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Two main effects, a choice, one interaction; the last column does nothing."""
    choice = np.array([0.0, 0.6, -0.3])[rows[:, 2].astype(int)]
    return np.asarray(np.sin(2 * rows[:, 0]) + 0.5 * rows[:, 1] + choice + 0.4 * rows[:, 0] * rows[:, 1])


def points(count: int, seed: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    rows = rng.random((count, 4))
    rows[:, 2] = rng.integers(0, 3, count)
    return rows


@pytest.fixture(scope="module")
def model() -> Surrogate:
    rows = points(40, 1)
    return Surrogate(rows, truth(rows) + 0.03 * np.random.default_rng(2).normal(size=40), CODES)


def test_it_predicts_what_it_has_not_seen(model: Surrogate) -> None:
    rows = points(200, 3)
    mean, deviation = model.predict(rows)
    wrong = truth(rows) - mean
    assert np.var(wrong) < 0.05 * np.var(truth(rows))
    assert 0.85 <= np.mean(np.abs(wrong) < 2 * deviation) <= 1.0, "its error bars hold"
    assert 0.01 < model.noise < 0.1


def test_joint_beliefs_agree_with_single_ones(model: Surrogate) -> None:
    """The variance of a row is what it shares with the anchors and what is its own."""
    rows, anchors = points(30, 4), points(5, 5)
    joint = model.relative(rows, anchors)
    mean, deviation = model.predict(rows)
    shared = ((joint.weights @ joint.factor) ** 2).sum(axis=1)
    np.testing.assert_allclose(joint.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(joint.anchor_mean, model.predict(anchors)[0], rtol=1e-9)
    np.testing.assert_allclose(np.sqrt(shared + joint.own**2), deviation, rtol=0.02)


def test_a_twin_of_an_anchor_has_nothing_of_its_own(model: Surrogate) -> None:
    """So a neighbour of the best configuration cannot gain by doubts that both share."""
    anchors = points(5, 5)
    joint = model.relative(anchors, anchors)
    assert joint.own.max() < 0.05 * model.predict(anchors)[1].min()
    drawn, front = joint.draw(np.random.default_rng(6), 2.0)
    np.testing.assert_allclose(drawn, front, atol=0.01)
    away = points(5, 7)
    assert model.relative(away, anchors).own.min() > 0.2 * model.predict(away)[1].min()


def test_no_anchors_leave_single_beliefs(model: Surrogate) -> None:
    rows = points(6, 8)
    joint = model.relative(rows, np.empty((0, 4)))
    np.testing.assert_allclose(joint.own, model.predict(rows)[1], rtol=1e-6)


def test_what_is_assumed_narrows_beliefs_nearby_and_keeps_the_scales(model: Surrogate) -> None:
    rows = points(3, 9)
    told = model.assuming(rows, 1.0)
    assert (told.predict(rows)[1] < model.predict(rows)[1]).all()
    assert (told.predict(rows)[0] > model.predict(rows)[0]).all(), "worse is larger: losses"
    assert told.noise == model.noise
