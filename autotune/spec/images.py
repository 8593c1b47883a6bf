"""Images in the prompts of a load."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from autotune.spec.part import Part
from autotune.spec.units import Share


class ImagesSpec(Part):
    """Images that go with prompts, made fresh for every request (PNG as data URLs). Their tokens come on top of
    `input_tokens`: how many they are, only the model knows."""

    count: Annotated[int, Field(ge=1, le=64)] = 1
    """Images in a request."""
    width: Annotated[int, Field(ge=16, le=8192)] = 1024
    """Pixels."""
    height: Annotated[int, Field(ge=16, le=8192)] = 1024
    """Pixels."""
    share: Annotated[Share, Field(gt=0)] = 1.0
    """Share of requests that have them."""
