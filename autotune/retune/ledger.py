"""Everything that re-tuning has seen and done, append-only. All state follows from it, so a kill loses nothing.

Times are Unix seconds. An entry is written before what it announces (`SwitchBegan`) or after what it proves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, Protocol, TypeAlias

from pydantic import Field, TypeAdapter

from autotune.space.config import FrozenValue
from autotune.store import Store

KIND = "retune"

Pairs: TypeAlias = tuple[tuple[str, str], ...]
Gain: TypeAlias = tuple[str, float, float, float]
"""(objective, ratio to the incumbent, low, high); above 1 is better."""


@dataclass(frozen=True, slots=True)
class Bin:
    """`count` requests had between `low` (exclusive) and `high` (inclusive) tokens."""

    low: float
    high: float
    count: float


@dataclass(frozen=True, slots=True)
class Profile:
    """What the users of the service do.

    Attributes:
        inputs, outputs: histograms of prompt and answer lengths.
        requests: how many requests they hold.
        rate: requests a second, or None where it was not watched.
        prefix_hits: share of prefix tokens found in the cache, or None where unknown.
    """

    inputs: tuple[Bin, ...]
    outputs: tuple[Bin, ...]
    requests: int
    rate: float | None = None
    prefix_hits: float | None = None


@dataclass(frozen=True, slots=True)
class Version:
    """A configuration that is or was meant for production, with its evidence and its files.

    Attributes:
        number: 1 is what the study itself recommended.
        args, env: the configuration.
        before: number of the version that it was compared with; 0 for the first.
        study: folder of the study that found it.
        gains: against `before`, from fresh interleaved starts.
        sentence: the claim.
        quality: one sentence.
        files: (relative path, text), the exported files as they were deployed.
    """

    number: int
    args: tuple[tuple[str, FrozenValue], ...]
    env: Pairs
    before: int
    study: str
    at: float
    sentence: str
    gains: tuple[Gain, ...] = ()
    quality: str = ""
    files: Pairs = ()
    kind: Literal["version"] = "version"


@dataclass(frozen=True, slots=True)
class SwitchBegan:
    """The deployed files are about to change. Without a `SwitchEnded` it was killed, and is undone."""

    before: int
    after: int
    at: float
    why: str
    kind: Literal["switch_began"] = "switch_began"


@dataclass(frozen=True, slots=True)
class SwitchEnded:
    """The switch is over; `current` is what is deployed now."""

    current: int
    at: float
    sentence: str
    held: bool = False
    """It was undone because a hook failed: the version waits for a person."""
    kind: Literal["switch_ended"] = "switch_ended"


@dataclass(frozen=True, slots=True)
class Reference:
    """What the present configuration was tuned for; triggers compare with the latest one."""

    fingerprint: Pairs
    profile: Profile | None
    at: float
    kind: Literal["reference"] = "reference"


@dataclass(frozen=True, slots=True)
class Canary:
    """Incumbent and baseline measured again: medians of three, in the first objective, oriented so that more is better.

    Attributes:
        version: the incumbent's.
        incumbent, baseline: medians; None where it could not be measured (`problem` says why).
    """

    version: int
    incumbent: float | None
    baseline: float | None
    at: float
    problem: str = ""
    kind: Literal["canary"] = "canary"


@dataclass(frozen=True, slots=True)
class Tuning:
    """A re-tuning has begun; until its pass ends with a judgement it is continued by the next pass."""

    folder: str
    reasons: tuple[str, ...]
    fingerprint: Pairs
    profile: Profile | None
    version: int
    at: float
    fallback: bool = False
    """The incumbent cannot serve any more, so the study's own baseline stands in for it."""
    moved: bool = False
    """The load is the profile's, not the study's."""
    kind: Literal["tuning"] = "tuning"


@dataclass(frozen=True, slots=True)
class Approval:
    """A person has agreed to a version, or has refused it."""

    version: int
    granted: bool
    by: str
    at: float
    kind: Literal["approval"] = "approval"


@dataclass(frozen=True, slots=True)
class PassEnded:
    """A pass and how it ended.

    Attributes:
        fire: the scheduled time that it was for.
        verdict: see `autotune.retune.verdict.Verdict`.
        reasons: why, one sentence each; the last one is the decision.
        gpu_hours: what it cost.
        version: current after it.
    """

    fire: float
    began: float
    at: float
    verdict: str
    reasons: tuple[str, ...]
    gpu_hours: float
    version: int
    kind: Literal["pass_ended"] = "pass_ended"


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The service has begun: scheduled times before this are not missed runs."""

    at: float
    kind: Literal["scheduled"] = "scheduled"


Entry: TypeAlias = Annotated[
    Scheduled | Version | SwitchBegan | SwitchEnded | Reference | Canary | Tuning | Approval | PassEnded,
    Field(discriminator="kind"),
]
_ENTRY: TypeAdapter[Entry] = TypeAdapter(Entry)


class Ledger(Protocol):
    """Keeps entries in order; an entry is on the disk when `add` returns."""

    def add(self, entry: Entry) -> None:
        """Append."""

    def entries(self) -> Sequence[Entry]:
        """All of them, oldest first."""


class StoreLedger:
    """The ledger in a study's database."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, entry: Entry) -> None:
        """Append; see `Ledger`."""
        self._store.put(KIND, entry.kind, _ENTRY.dump_json(entry).decode())

    def entries(self) -> Sequence[Entry]:
        """All entries; see `Ledger`."""
        return tuple(_ENTRY.validate_json(body) for _, body in self._store.documents(KIND))


@dataclass(frozen=True)
class State:
    """What follows from the ledger."""

    versions: tuple[Version, ...] = ()
    current: int = 0
    switch: SwitchBegan | None = None
    """A switch that was killed half-way."""
    reference: Reference | None = None
    canaries: tuple[Canary, ...] = ()
    """Since the latest reference, of the current version."""
    tuning: Tuning | None = None
    """A re-tuning that is not finished."""
    pending: Version | None = None
    """A version that is proven and not deployed."""
    held: bool = False
    """Its hooks have failed: it waits for a person whatever the approval mode."""
    approvals: tuple[Approval, ...] = ()
    passes: tuple[PassEnded, ...] = field(default=())
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

    @property
    def handled(self) -> float | None:
        """The latest scheduled time that had its pass, else when the service began; None before both."""
        return max((one.fire for one in self.passes), default=self.since)

    def gpu_hours_since(self, moment: float) -> float:
        """What passes cost since then."""
        return sum(one.gpu_hours for one in self.passes if one.at >= moment)


def _after(state: State, entry: Entry) -> State:
    match entry:
        case Scheduled():
            return replace(state, since=state.since or entry.at)
        case Version():
            pending = entry if state.versions else None
            tuned = state.tuning
            reference = Reference(tuned.fingerprint, tuned.profile, entry.at) if tuned else state.reference
            return replace(
                state, versions=(*state.versions, entry), pending=pending, held=False, reference=reference, tuning=None
            )  # fmt: skip
        case SwitchBegan():
            return replace(state, switch=entry)
        case SwitchEnded():
            done = state.pending is not None and entry.current == state.pending.number
            canaries = () if entry.current != state.current else state.canaries
            pending = None if done else state.pending
            return replace(
                state, switch=None, current=entry.current, canaries=canaries, pending=pending, held=entry.held,
                approvals=() if entry.held else state.approvals,
            )  # fmt: skip
        case Reference():
            return replace(state, reference=entry, canaries=(), tuning=None)
        case Canary():
            return replace(state, canaries=(*state.canaries, entry))
        case Tuning():
            return replace(state, tuning=entry)
        case Approval():
            refused = not entry.granted and state.pending is not None and state.pending.number == entry.version
            return replace(state, approvals=(*state.approvals, entry), pending=None if refused else state.pending)
        case PassEnded():
            return replace(state, passes=(*state.passes, entry))
