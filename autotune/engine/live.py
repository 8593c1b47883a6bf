"""The seam for settings that a running engine can change without a restart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autotune.space.config import FrozenValue


@dataclass(frozen=True, slots=True)
class LiveStart:
    """What an engine must be started with so that it can be changed later.

    Attributes:
        args: words to add to the command line, such as ``--scheduler-cls``.
        env: variables to add.
        imports: folder that the engine imports from as well, before those of its own PYTHONPATH.
    """

    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    imports: str = ""


class LiveLimits(Protocol):
    """Writes limits where the engine's scheduler reads them. One per engine start."""

    @property
    def start(self) -> LiveStart: ...

    def write(self, values: Mapping[str, FrozenValue]) -> bool:
        """Make `values` the limits from the next step on; False where they cannot be (then a restart is needed)."""

    def close(self) -> None:
        """Remove what `prepare` made."""


class LiveFactory(Protocol):
    """Makes the limits of one start in the trial's folder."""

    @property
    def names(self) -> frozenset[str]:
        """Settings that may change live."""

    def prepare(self, folder: Path) -> LiveLimits: ...
