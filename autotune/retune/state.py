"""What follows from the ledger: what is deployed, what waits, what is unfinished. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.retune.ledger import (
    Approval,
    Canary,
    Dropped,
    Entry,
    PassEnded,
    Reading,
    Reference,
    Scheduled,
    SwitchBegan,
    SwitchEnded,
    Tuning,
    Version,
)

DAY_S = 86400.0


@dataclass(frozen=True)
class State:
    """What follows from the ledger."""

    versions: tuple[Version, ...] = ()
    current: int = 0
    switch: SwitchBegan | None = None
    """A switch that was killed half-way."""
    reference: Reference | None = None
    reading: Reading | None = None
    canaries: tuple[Canary, ...] = ()
    """Since the latest reference, of the current version."""
    tuning: Tuning | None = None
    """A re-tuning that is not finished."""
    pending: Version | None = None
    """A version that is proven and not deployed."""
    held: bool = False
    """Its hooks have failed: it waits for a person whatever the approval mode."""
    approvals: tuple[Approval, ...] = ()
    rejected: tuple[int, ...] = ()
    """Versions that a person has refused or rolled back from."""
    passes: tuple[PassEnded, ...] = ()
    since: float | None = None
    """When the service began for the first time."""

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> State:
        """Replay the ledger."""
        state = cls()
        for entry in entries:
            state = _after(state, entry)
        return state

    def version(self, number: int) -> Version | None:
        """The version of that number."""
        return next((one for one in self.versions if one.number == number), None)

    @property
    def incumbent(self) -> Version | None:
        """What is deployed."""
        return self.version(self.current)

    @property
    def approved(self) -> bool:
        """A person has agreed to the pending version since it was proven or held."""
        number = self.pending.number if self.pending else 0
        return any(one.granted and one.version == number for one in self.approvals)

    def handled(self, now: float) -> float | None:
        """The latest scheduled time that had its pass, else when the service began; None before both.

        Times more than a day ahead are not believed: the clock was wrong, and would keep the schedule still for ever.
        """
        times = [one.fire for one in self.passes] + ([] if self.since is None else [self.since])
        return max((time for time in times if time <= now + DAY_S), default=None)

    def gpu_hours(self, begin: float, end: float) -> float:
        """What the passes cost that ended between two times."""
        return sum(one.gpu_hours for one in self.passes if begin <= one.at <= end)


def _after(state: State, entry: Entry) -> State:
    match entry:
        case Scheduled():
            return replace(state, since=entry.at if state.since is None else min(state.since, entry.at))
        case Version():
            pending = entry if state.versions else None
            tuned = state.tuning
            state = replace(state, versions=(*state.versions, entry), pending=pending, held=False, tuning=None)
            if tuned is None:
                return state
            return replace(state, reference=Reference(tuned.fingerprint, tuned.profile, entry.at), canaries=())
        case SwitchBegan():
            return replace(state, switch=entry)
        case SwitchEnded():
            done = state.pending is not None and entry.current == state.pending.number
            canaries = () if entry.current != state.current else state.canaries
            pending = None if done else state.pending
            back = state.switch is not None and state.switch.change == "rollback" and entry.current != state.current
            rejected = (*state.rejected, state.current) if back else state.rejected
            rejected = tuple(number for number in rejected if not same_configuration(state, number, entry.current))
            return replace(
                state, switch=None, current=entry.current, canaries=canaries, pending=pending, held=entry.held,
                approvals=() if entry.held else state.approvals, rejected=rejected,
            )  # fmt: skip
        case Reference() if entry.more:
            return replace(state, reference=entry)
        case Reference():
            return replace(state, reference=entry, canaries=(), tuning=None)
        case Reading():
            return replace(state, reading=entry)
        case Canary():
            return replace(state, canaries=(*state.canaries, entry))
        case Tuning():
            return replace(state, tuning=entry)
        case Approval():
            if entry.granted:
                return replace(state, approvals=(*state.approvals, entry))
            return replace(_without(state, entry.version), rejected=(*state.rejected, entry.version))
        case Dropped():
            return _without(state, entry.version)
        case PassEnded():
            return replace(state, passes=(*state.passes, entry))


def same_configuration(state: State, one: int, other: int) -> bool:
    """Two versions are the same configuration."""
    first, second = state.version(one), state.version(other)
    return first is not None and second is not None and (first.args, first.env) == (second.args, second.env)


def _without(state: State, version: int) -> State:
    """A version that waits does not wait any more."""
    waits = state.pending is not None and state.pending.number == version
    return replace(state, pending=None, held=False) if waits else state
