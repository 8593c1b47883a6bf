"""A rate that rises and falls."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from autotune.spec.part import Part
from autotune.spec.units import Seconds, Share


class RampSpec(Part):
    """Within a period the rate rises evenly from `1 - swing` to `1 + swing` times the level and falls back; arrivals
    are Poisson at every moment."""

    period: Annotated[Seconds, Field(gt=0)] = 60.0
    """Length of one rise and fall; the window must hold whole ones."""
    swing: Annotated[Share, Field(gt=0)] = 0.5
    """How far the rate goes from its mean."""
