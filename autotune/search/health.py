"""Is it the machine or the configuration? What faults in a row say, and when the baseline is asked."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.outcome import Broken, Measured, Proposal, TrialRecord
from autotune.search.objectives import REPEATS
from autotune.space.config import EngineConfig

ATTEMPTS = 3
"""A configuration that meets faults of ours is run so often in all, then it is given up."""
ASK_AFTER = 2
"""So many different configurations broken in a row can be the machine's fault: the baseline tells."""


def has_another_attempt(record: TrialRecord, history: Sequence[TrialRecord]) -> bool:
    """Whether a configuration of the search is to be run again after a fault of ours.

    Args:
        record: its latest trial.
        history: all records, this one included.
    """
    outcome = record.outcome
    if not isinstance(outcome, Broken) or not outcome.retry or outcome.stop:
        return False
    mine = [one for one in history if one.config.hash == record.config.hash and one.proposal.origin not in REPEATS]
    faults = [one.outcome for one in mine if isinstance(one.outcome, Broken)]
    alike = sum(fault.cause == outcome.cause for fault in faults)
    return max(len(faults), record.attempt) < ATTEMPTS and alike < outcome.attempts


def settled(history: Sequence[TrialRecord], origin: str) -> list[TrialRecord]:
    """The runs of one origin that count: all outcomes, and of faults in a row of one configuration the last allowed."""
    found: list[TrialRecord] = []
    faults: dict[str, int] = {}
    for record in history:
        if record.proposal.origin != origin:
            continue
        key, outcome = record.config.hash, record.outcome
        if isinstance(outcome, Broken) and outcome.retry:
            faults[key] = faults.get(key, 0) + (outcome.cause != "interrupted")
            if faults[key] < ATTEMPTS:
                continue
        faults[key] = 0
        found.append(record)
    return found


class MachineHealth:
    """Hears of every trial of a session. Configurations that break are their own affair until the baseline breaks too.

    Args:
        baseline: what runs today; nothing else is tried before it was measured.
    """

    def __init__(self, baseline: EngineConfig) -> None:
        self._baseline = baseline
        self._faults: list[tuple[TrialRecord, Broken]] = []
        """Since something was measured the last time."""

    def told(self, record: TrialRecord) -> str | None:
        """Take in a finished trial; the sentence that ends the study where going on would only burn GPU time."""
        outcome = record.outcome
        if not isinstance(outcome, Broken):
            if isinstance(outcome, Measured) or self._is_baseline(record):
                self._faults.clear()
            return None
        again = any(fault.cause == outcome.cause for _, fault in self._faults)
        self._faults.append((record, outcome))
        what = f"{outcome.cause}: {outcome.reason}"
        if outcome.stop:
            return f"trial {record.number}: {what}"
        if outcome.machine and again:
            return f"trial {record.number}, for the second time in a row: {what}"
        own, others = self._counts()
        if not self._is_baseline(record):
            return None
        if own >= ASK_AFTER and len(others) >= ASK_AFTER:
            return f"{len(others)} configurations broke in a row, and what you run today breaks as well: {what}"
        return f"what you run today broke {own} times in a row, the last time with {what}" if own >= ATTEMPTS else None

    def question(self) -> Proposal | None:
        """The baseline, where faults in a row could be the machine's; once measured, it clears the machine."""
        _, others = self._counts()
        proof = any(record.proposal.origin in REPEATS for record, _ in self._faults if not self._is_baseline(record))
        # In the proof a last attempt is only spent on a machine that serves: what fails there is not recommended.
        last_attempt = proof and max(others.values(), default=0) >= ATTEMPTS - 1
        if len(others) < ASK_AFTER and not last_attempt:
            return None
        return Proposal(self._baseline, origin="sentinel", note="trials broke in a row: does the machine still serve?")

    def _is_baseline(self, record: TrialRecord) -> bool:
        return record.config.hash == self._baseline.hash

    def _counts(self) -> tuple[int, dict[str, int]]:
        """Faults in a row of the baseline, and of each other configuration."""
        own, others = 0, dict[str, int]()
        for record, _ in self._faults:
            if self._is_baseline(record):
                own += 1
            else:
                others[record.config.hash] = others.get(record.config.hash, 0) + 1
        return own, others
