"""What a search overlooks that has stopped getting better: values that were judged in bad company only.

A model that has seen a layout fail three times, each time with too few sequences, expects nothing of it with enough of
them. What it says of values that it has never seen beside a good configuration is an extrapolation: there they are
measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from autotune.search.screen import Point
from autotune.space.config import FrozenValue

if TYPE_CHECKING:
    from autotune.search.whole import WholeLimit
    from autotune.space.space import SearchSpace

FAR = 3
"""So many other settings differ in everything that a value was measured with."""
STARVED = 0.6
"""A limit of the whole engine below so much of another one is lower; the steps of a ladder are closer."""
NEAR_STEPS = 1
"""Steps of a ladder that make no difference."""


def neglected_choices(
    space: SearchSpace, good: Sequence[Mapping[str, FrozenValue]], known: Sequence[Mapping[str, FrozenValue]]
) -> list[Point]:
    """Good configurations with one choice changed to a value that was never measured near them; the farthest first.

    What was never measured at all is left to the model, which knows that it knows nothing of it.

    Args:
        space: for what is a choice.
        good: the best configurations.
        known: everything that was tried.
    """
    found: list[tuple[int, Point]] = []
    for point, name, value in _changed_choices(space, good):
        company = [one for one in known if one.get(name) == value]
        apart = min((_apart(space, one, point) for one in company), default=0)
        if apart >= FAR:
            found.append((apart, point))
    return [point for _, point in sorted(found, key=lambda one: -one[0])]


def neglected_layouts(
    whole: WholeLimit, good: Sequence[Mapping[str, FrozenValue]], known: Sequence[Mapping[str, FrozenValue]]
) -> list[Point]:
    """Good configurations in layouts that were only measured with a lower limit of the whole engine; the lowest first.

    What was measured of such a layout is a queue before it.

    Args:
        whole: the limit.
        good: the best configurations.
        known: everything that was tried.
    """
    most: dict[FrozenValue, int] = {}
    for one in known:
        limit, layout = whole.at(one), one.get(whole.layout.name)
        if limit is not None and layout is not None:
            most[layout] = max(limit, most.get(layout, 0))
    found: list[tuple[float, Point]] = []
    for base in good:
        for layout in most:
            point = whole.moved(base, layout)
            limit = whole.at(point)
            if limit is not None and most[layout] < STARVED * limit:
                found.append((most[layout] / limit, point))
    return [point for _, point in sorted(found, key=lambda one: one[0])]


def neglected_ends(
    live: frozenset[str], ends: Sequence[Mapping[str, FrozenValue]], known: Sequence[Mapping[str, FrozenValue]]
) -> list[Point]:
    """Those of `ends` whose combination of live settings was never measured, on whatever engine."""
    seen = [_part(one, live) for one in known]
    return [dict(end) for end in ends if _part(end, live) not in seen]


def _changed_choices(
    space: SearchSpace, good: Sequence[Mapping[str, FrozenValue]]
) -> Iterator[tuple[Point, str, FrozenValue]]:
    for base in good:
        for parameter in space.parameters:
            if not parameter.ordered and parameter.name in base:
                for value in parameter.values:
                    if value != base[parameter.name]:
                        yield {**base, parameter.name: value}, parameter.name, value


def _apart(space: SearchSpace, first: Mapping[str, FrozenValue], second: Mapping[str, FrozenValue]) -> int:
    """Settings in which two points differ by more than a step; those that only one of them has do not count."""
    return sum(_differs(space, name, first[name], second[name]) for name in first.keys() & second.keys())


def _differs(space: SearchSpace, name: str, first: FrozenValue, second: FrozenValue) -> bool:
    parameter = space.by_name[name]
    if not parameter.ordered or first not in parameter.values or second not in parameter.values:
        return first != second
    return abs(parameter.values.index(first) - parameter.values.index(second)) > NEAR_STEPS


def _part(point: Mapping[str, FrozenValue], names: frozenset[str]) -> Point:
    return {name: value for name, value in point.items() if name in names}
