"""Where trials run: on this host or on the nodes of a cluster. What crosses are values, and a record comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from autotune.outcome import Proposal, TrialRecord

NODE_LOST = "node_lost"
"""Cause of a trial whose node went away: it is queued again, and says nothing about machine or configuration."""
NO_PLACE = "no_place"
"""Cause of a trial for which no node was found: its place is given up, other places go on."""


@dataclass(frozen=True, slots=True)
class TrialTask:
    """One trial to run.

    Attributes:
        number: of the trial; it names its folder and seeds the content of its prompts.
        proposal: what to try.
        attempt: 1, or more for a repeated fault.
        fresh: insist on a new engine process.
        plain: start the engine as a deployment would: without our scheduler class, on all cores of the host.
        arrival_seed: other lengths and arrivals than the study's.
    """

    number: int
    proposal: Proposal
    attempt: int = 1
    fresh: bool = False
    plain: bool = False
    arrival_seed: int | None = None


class Executor(Protocol):
    """Runs trials at numbered places, one at a time at each. Events of trials go to the study's observer."""

    async def open(self, places: int) -> None:
        """Make so many places, on disjoint GPUs; other places than these are given up, and their engines end.

        Raises:
            EnvironmentFault: there is no room for them.
        """

    async def room(self) -> None:
        """Wait until there is room for one more trial: what is proposed earlier knows fewer outcomes."""

    async def run(self, place: int, task: TrialTask) -> TrialRecord:
        """Run a trial at a place; whatever happens to it comes back as a record that names the place.

        Cancelled, it returns when the trial's engine has ended.

        Raises:
            EnvironmentFault: nothing can run there any more.
        """

    async def rest(self) -> None:
        """End all engines and keep the places: what runs next runs alone."""

    async def close(self) -> None:
        """End everything. May be called twice."""
