"""How a pass can end, as values with reasons."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How a pass ended."""

    NOTHING = "nothing"
    """Nothing triggered."""
    KEPT = "kept"
    """Tuned again; what runs today stays."""
    PROMOTED = "promoted"
    """A better configuration is deployed."""
    WAITING = "waiting"
    """A better configuration waits for approval."""
    DRY = "dry run"
    """What would have been done was said and not done."""
    GAVE_WAY = "gave way"
    """Ended early by a signal, a closing window or a spent budget; the next pass goes on."""
    BLOCKED = "blocked"
    """Did not start: foreign work on the GPUs, another pass, or a spent budget."""
    ROLLED_BACK = "rolled back"
    """A hook failed, or a switch was killed; what ran before is deployed."""
    ALERT = "alert"
    """Something that tuning cannot repair: a sick machine, or nothing that serves."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a pass ended and why; the last reason is the decision itself."""

    verdict: Verdict
    reasons: tuple[str, ...]

    def because(self, *earlier: str) -> Ending:
        """The same with reasons that came before."""
        return Ending(self.verdict, (*earlier, *self.reasons))
