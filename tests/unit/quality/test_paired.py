"""Paired statistics against published values and brute force."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.quality.paired import Paired, power_sentence, questions_needed, smallest_fall


def test_pairs_are_counted() -> None:
    pair = Paired.of([True, True, False, False, True], [True, False, True, False, False])
    assert pair == Paired(questions=5, lost=2, gained=1, right_before=3)


@pytest.mark.parametrize(("before", "now"), [([], []), ([True], [True, False])])
def test_other_numbers_of_answers_are_refused(before: list[bool], now: list[bool]) -> None:
    with pytest.raises(ValueError, match="answers before"):
        Paired.of(before, now)


@pytest.mark.parametrize(
    ("lost", "gained", "p"),
    # 2 x sum of C(n, k) / 2^n up to the smaller count, by hand.
    [(0, 0, 1.0), (5, 0, 2 / 32), (6, 1, 2 * 8 / 128), (3, 3, 1.0), (91, 86, 0.764)],
)
def test_mcnemars_exact_test(lost: int, gained: int, p: float) -> None:
    assert Paired(1319, lost, gained, 1000).p_value() == pytest.approx(p, abs=0.001)


@pytest.mark.parametrize(
    ("fall", "discordant", "needed"), [(0.01, 0.05, 3922), (0.02, 0.134, 2628), (0.05, 0.134, 418)]
)
def test_questions_needed(fall: float, discordant: float, needed: int) -> None:
    assert questions_needed(fall, discordant) == pytest.approx(needed, rel=0.01)


def test_the_formula_keeps_its_promise() -> None:
    """So many simulated question sets with that fall: four of five are significant."""
    questions = questions_needed(0.05, 0.134)
    generator = np.random.default_rng(2)
    seen = 0
    for _ in range(400):
        lost, gained, _same = generator.multinomial(questions, [0.092, 0.042, 0.866])
        seen += Paired(questions, int(lost), int(gained), 300).p_value() < 0.05
    assert 0.72 < seen / 400 < 0.86


def test_the_smallest_visible_fall_is_the_inverse() -> None:
    for questions, discordant in ((200, 0.08), (1319, 0.134), (14042, 0.05)):
        fall = smallest_fall(questions, discordant)
        assert questions_needed(fall, discordant) <= questions < questions_needed(0.97 * fall, discordant)


def test_few_questions_cannot_see_one_point() -> None:
    assert "can see a fall of 5.6 points, no smaller one" in power_sentence(Paired(200, 8, 8, 160))


def test_too_few_questions_for_their_discordance_see_only_more() -> None:
    assert smallest_fall(20, 0.02) > 0.2


def test_a_fall_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="not possible"):
        questions_needed(0.2, 0.1)


def test_the_interval_covers_the_truth() -> None:
    generator = np.random.default_rng(4)
    hits = 0
    for _ in range(400):
        lost, gained, _same = generator.multinomial(500, [0.06, 0.04, 0.9])
        fall = Paired(500, int(lost), int(gained), 400).fall()
        hits += fall.low <= 0.02 <= fall.high
    assert hits >= 370
