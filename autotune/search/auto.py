"""The default search."""

from __future__ import annotations

from autotune.outcome import Proposal
from autotune.search.local import LocalStrategy
from autotune.search.proposer import Setting, Situation
from autotune.search.samplers import SamplerStrategy


class AutoStrategy:
    """Local changes of good configurations, and every third time a draw from TPE."""

    def __init__(self, setting: Setting) -> None:
        self._local = LocalStrategy(setting)
        self._tpe = SamplerStrategy(setting, "tpe")

    def suggest(self, situation: Situation) -> Proposal | None:
        strategy = self._tpe if len(situation.history) % 3 == 2 else self._local
        return strategy.suggest(situation)
