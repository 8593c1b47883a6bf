"""What a load's profile takes for granted about the engine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from autotune.spec.checks import Problem
from autotune.spec.part import Part
from autotune.spec.units import Share


class ExpectSpec(Part):
    """What must be true of the engine in a window for its figures to mean what the profile says; else the window is
    invalid. A limit that a configuration has to hold is an SLO and not an expectation."""

    preemptions: Annotated[float, Field(ge=0)] | None = None
    """Most preemptions per finished request; 0 for none at all."""
    queue: Share | None = None
    """Largest share of the requests in the engine that wait, on average over the window."""

    def problems(self) -> Iterable[Problem]:
        if self.preemptions is None and self.queue is None:
            yield Problem((), "expects nothing", "give `preemptions` or `queue`, or remove it")
