"""`autotune schedule`: waits for the next start and runs a pass, for ever. The clock is injected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from autotune.errors import AutotuneError, SpecError
from autotune.retune.ledger import Ledger, Scheduled
from autotune.retune.onepass import Call
from autotune.retune.schedule import LATE, Schedule, Start
from autotune.retune.state import DAY_S, State
from autotune.retune.verdict import Ending

STEP_S = 30.0
"""The wall clock is read again at least so often: it may be set, and the machine may have slept."""


class Clock(Protocol):
    """Tells the time and waits for it."""

    def now(self) -> float:
        """Unix seconds."""

    async def sleep_until(self, moment: float) -> None:
        """Return once `now()` has reached `moment`, or earlier where the clock was set back."""


class WallClock:
    """The machine's clock."""

    def now(self) -> float:
        """Unix seconds."""
        return time.time()

    async def sleep_until(self, moment: float) -> None:
        """See `Clock.sleep_until`."""
        before = self.now()
        while (left := moment - before) > 0:
            await asyncio.sleep(min(left, STEP_S))
            now = self.now()
            if now < before:
                return
            before = now


def call_at(schedule: Schedule, budget_s: float, fire: float, now: float) -> Call:
    """A pass that begins now: it must be over when its budget is spent or its window closes."""
    ends = schedule.windows.opening(_moment(now)).ends
    deadline = now + budget_s
    return Call(fire, min(deadline, ends.timestamp()) if ends is not None else deadline)


def in_window(schedule: Schedule, now: float) -> bool:
    """Whether a pass may run now."""
    return schedule.windows.opening(_moment(now)).begins <= _moment(now)


def first_start(ledger: Ledger, now: float) -> float:
    """What `Service.begin` is with a ledger."""
    handled = State.of(ledger.entries()).handled(now)
    if handled is None:
        ledger.add(Scheduled(now))
        return now
    return handled


@dataclass
class Service:
    """The loop.

    Attributes:
        schedule: when.
        budget_s: longest time of a pass in seconds.
        run: runs a pass; it holds the lock meanwhile.
        begin: keep the present in the ledger as the service's first start, where it has none, and give back the latest
            scheduled time that had its pass, else that first start.
        say: is told what happens, one line each.
    """

    schedule: Schedule
    budget_s: float
    clock: Clock
    run: Callable[[Call], Awaitable[Ending]]
    begin: Callable[[float], float]
    say: Callable[[str], None]

    async def serve(self, until: float | None = None) -> None:
        """Run passes until cancelled (a pass that runs then gives way), or until `until` (Unix seconds).

        Raises:
            SpecError: the study file is wrong: waiting would not help.
        """
        handled, said = self.begin(self.clock.now()), ""
        while True:
            now = self.clock.now()
            if handled > now + DAY_S:  # the clock was wrong, and is right again
                handled = self.begin(now)
            start = self.schedule.next_start(_moment(handled), _moment(now))
            if start.sentence != said:
                self.say(f"the next pass {start.sentence}")
                said = start.sentence
            if until is not None and start.at.timestamp() >= until:
                return
            await self.clock.sleep_until(start.at.timestamp())
            if self._in_time(start):
                await self._one(start)
                handled, said = max(handled, start.fire.timestamp()), ""

    def _in_time(self, start: Start) -> bool:
        """It is the time that was waited for. Where the clock was set, or the machine slept, it is looked at again."""
        now = self.clock.now()
        return 0 <= now - start.at.timestamp() <= LATE.total_seconds() and in_window(self.schedule, now)

    async def _one(self, start: Start) -> None:
        now = self.clock.now()
        try:
            ending = await self.run(call_at(self.schedule, self.budget_s, start.fire.timestamp(), now))
        except SpecError:
            raise
        except AutotuneError as error:
            self.say(f"the pass could not run: {error}")
            return
        for reason in ending.reasons:
            self.say(reason)
        self.say(f"the pass ends: {ending.verdict}")


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
