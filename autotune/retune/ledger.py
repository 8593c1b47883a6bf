"""Everything that re-tuning has seen and done, append-only. All state follows from it, so a kill loses nothing.

Times are Unix seconds. An entry is written before what it announces (`SwitchBegan`) or after what it proves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError

from autotune.errors import StoreError
from autotune.space.config import FrozenValue
from autotune.store import Store, shown

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
    change: Literal["adopt", "promote", "rollback"] = "promote"
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
    more: bool = False
    """The one before it, with what was not known then; the canaries since then still count."""
    kind: Literal["reference"] = "reference"


@dataclass(frozen=True, slots=True)
class Reading:
    """The service's own counters at a moment; the next pass takes what has happened since.

    Attributes:
        histograms: by name, as (upper edge, requests up to it); an edge is text, since JSON has no infinite number.
        counters: of the prefix cache.
    """

    at: float
    histograms: tuple[tuple[str, tuple[tuple[str, float], ...]], ...]
    counters: tuple[tuple[str, float], ...]
    kind: Literal["reading"] = "reading"


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
class Dropped:
    """A version that waited is out of date: it will not be deployed, even if somebody agreed to it."""

    version: int
    at: float
    why: str
    kind: Literal["dropped"] = "dropped"


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
    Scheduled
    | Version
    | SwitchBegan
    | SwitchEnded
    | Reference
    | Reading
    | Canary
    | Tuning
    | Approval
    | Dropped
    | PassEnded,
    Field(discriminator="kind"),
]
_ENTRY: TypeAdapter[Entry] = TypeAdapter(Entry)


def entry_json(entry: Entry) -> str:
    """An entry as it is kept."""
    return _ENTRY.dump_json(entry).decode()


def entry_from_json(text: str) -> Entry:
    """The inverse of `entry_json`.

    Raises:
        ValidationError: it is none.
    """
    return _ENTRY.validate_json(text)


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
        self._store.put(KIND, entry.kind, entry_json(entry))

    def entries(self) -> Sequence[Entry]:
        """All entries; see `Ledger`.

        Raises:
            StoreError: one cannot be read; what is deployed must not be decided from half a history.
        """
        documents = self._store.documents(KIND)
        return tuple(self._read(number, kind, body) for number, (kind, body) in enumerate(documents, 1))

    def _read(self, number: int, kind: str, body: str) -> Entry:
        try:
            return entry_from_json(body)
        except ValidationError as error:
            what = error.errors(include_url=False, include_input=False)[0]["msg"]
            raise StoreError(
                f"database {shown(self._store.url)}: entry {number} of the re-tuning history ({kind}) cannot be read: "
                f"{what}\n  it was changed by hand or written by a newer autotune: restore the database from a backup, "
                "or upgrade; nothing was deployed"
            ) from None
