"""Student's t distribution, for intervals from few repetitions."""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist


@cache
def small_sample_factor(count: int) -> float:
    """How much wider an interval must be than what resampling `count` blocks or documents gives; 1 below two.

    sqrt(n / (n - 1)) t_{0.975, n - 1} / z_{0.975}: resampling takes the variance of few (n - 1)/n too small and their
    mean for normal where it is Student's t (the idea of the expanded percentile interval: T. Hesterberg, "What Teachers
    Should Know About the Bootstrap", 2015, section 5.3).
    """
    if count < 2:
        return 1.0
    return math.sqrt(count / (count - 1)) * t_quantile(0.975, count - 1) / NormalDist().inv_cdf(0.975)


def t_quantile(chance: float, freedom: int) -> float:
    """Quantile of Student's t distribution, by bisection on its distribution function; accurate to 1e-9."""
    if chance < 0.5:
        return -t_quantile(1 - chance, freedom)
    low, high = 0.0, 1.0
    while _t_cdf(high, freedom) < chance:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_cdf(middle, freedom) < chance else (low, middle)
    return (low + high) / 2


def _t_cdf(value: float, freedom: int) -> float:
    """Distribution function for value >= 0 (Abramowitz and Stegun 26.7.1)."""
    return 1 - 0.5 * _beta(freedom / 2, 0.5, freedom / (freedom + value * value))


def _beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function by its continued fraction (Abramowitz and Stegun 26.5.8)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    c, d = 1.0, 1 / max(1 - (a + b) * x / (a + 1), 1e-300)
    fraction = d
    for m in range(1, 300):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / (1 + term * d)
            c = 1 + term / c
            fraction *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return front * fraction
