"""Every surface of the comparison by name: formulas, held-out variants of them, and the simulator."""

from __future__ import annotations

from benchmarks.search.simulator import SIMULATOR, SimulatorStudy
from benchmarks.search.study import Ground, SimulatedStudy
from benchmarks.search.surfaces import BY_NAME

GROUNDS: dict[str, Ground] = {**BY_NAME, SIMULATOR.name: SIMULATOR}


def study_on(ground: Ground, seed: int, *, live: bool = False) -> SimulatedStudy:
    """A fresh study. The noise depends on seed and trial number alone."""
    kind = SimulatorStudy if ground is SIMULATOR else SimulatedStudy
    return kind(ground, seed, live=live)
