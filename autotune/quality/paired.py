"""Two engines on the same questions: is one worse, and could so few questions show it at all?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from autotune.load.report import Estimate

MARGIN = 0.02
"""A fall by so much (2 points) is accepted; a configuration passes where a larger one is excluded."""
POWER = 0.8


@dataclass(frozen=True, slots=True)
class Paired:
    """Answers of two engines to the same questions.

    Attributes:
        questions: how many.
        lost: right before, wrong now.
        gained: wrong before, right now.
        right_before: right answers of the reference.
    """

    questions: int
    lost: int
    gained: int
    right_before: int

    @staticmethod
    def of(before: Sequence[bool], now: Sequence[bool]) -> Paired:
        """Count pairs.

        Raises:
            ValueError: the numbers of answers differ or are 0.
        """
        if len(before) != len(now) or not before:
            raise ValueError(f"{len(before)} answers before, {len(now)} now")
        pairs = list(zip(before, now, strict=True))
        return Paired(
            len(pairs), sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs), sum(a for a, _ in pairs)
        )

    @property
    def discordant(self) -> float:
        """Share of questions with another outcome."""
        return (self.lost + self.gained) / self.questions

    def fall(self) -> Estimate:
        """How much the share of right answers fell, with a 95 % interval.

        A. Agresti and Y. Min, "Simple improved confidence intervals for comparing matched proportions", Statistics in
        Medicine 24 (2005): Wald's interval after adding half a pair to each of the four cells.
        """
        n, lost, gained = self.questions + 2, self.lost + 0.5, self.gained + 0.5
        centre = (lost - gained) / n
        half = NormalDist().inv_cdf(0.975) * math.sqrt(lost + gained - (lost - gained) ** 2 / n) / n
        value = (self.lost - self.gained) / self.questions
        return Estimate(value, min(value, centre - half), max(value, centre + half), self.questions)

    def p_value(self) -> float:
        """McNemar's exact test, two-sided: the chance of so uneven a split of the discordant pairs by luck alone."""
        pairs = self.lost + self.gained
        if not pairs:
            return 1.0
        below = sum(math.comb(pairs, k) for k in range(min(self.lost, self.gained) + 1))
        return min(1.0, 2.0 * float(below / 2**pairs))


def questions_needed(fall: float, discordant: float, power: float = POWER) -> int:
    """Pairs that show a fall with that power, 95 % two-sided (Connett, Smith and McHugh 1987).

    n = (z_a sqrt(p) + z_b sqrt(p - d^2))^2 / d^2 for a share `discordant` p and a fall d.

    Raises:
        ValueError: the fall is not between 0 and the discordant share.
    """
    if not 0 < fall <= discordant:
        raise ValueError(f"a fall of {fall} is not possible with {discordant} discordant pairs")
    z_a, z_b = NormalDist().inv_cdf(0.975), NormalDist().inv_cdf(power)
    return math.ceil((z_a * math.sqrt(discordant) + z_b * math.sqrt(discordant - fall**2)) ** 2 / fall**2)


def smallest_fall(questions: int, discordant: float, power: float = POWER) -> float:
    """The smallest fall that so many questions show with that power; 1 where not even a total one is shown.

    With few discordant pairs the share is taken as at least one in a hundred: none seen does not mean that none exist.
    """
    share = max(discordant, 0.01)
    low, high = 0.0, share
    if questions_needed(high, share, power) > questions:
        # A fall larger than the present share would raise the share with it.
        low, high, free = share, 1.0, True
    else:
        free = False
    for _ in range(40):
        middle = (low + high) / 2
        enough = questions_needed(middle, middle if free else share, power) <= questions
        low, high = (low, middle) if enough else (middle, high)
    return high


def power_sentence(pair: Paired) -> str:
    """What so many questions can see, for people."""
    seen = smallest_fall(pair.questions, pair.discordant)
    changed = f"{pair.questions} questions with {pair.discordant:.1%} changed answers"
    return f"{changed} can see a fall of {100 * seen:.1f} points, no smaller one"
