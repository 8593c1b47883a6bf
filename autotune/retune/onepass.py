"""One pass, start to end: recover, look, decide, tune, judge, promote. Every decision is kept with its reasons."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from autotune.errors import EnvironmentFault
from autotune.retune.ledger import Canary, Dropped, Ledger, PassEnded, Reading, Reference, Tuning, Version
from autotune.retune.promotion import Now, Switch, Tuned, judge
from autotune.retune.state import State
from autotune.retune.triggers import (
    Finding,
    canary_finding,
    canary_median,
    fingerprint_finding,
    workload_finding,
)
from autotune.retune.tuner import GiveWay, Sight, Tuner
from autotune.retune.verdict import Ending, Verdict
from autotune.retune.waiting import needs_a_person, out_of_date
from autotune.space.config import EngineConfig
from autotune.spec.retune import RetuneSpec

MONTH_S = 30 * 86400.0
LEAST_SECONDS = 60.0
"""With less time left than this nothing is started."""


@dataclass(frozen=True, slots=True)
class Call:
    """How a pass was called.

    Attributes:
        fire: the scheduled time that it is for, Unix seconds.
        deadline: when it must have given way (budget and window), Unix seconds.
        dry_run: say what would be done; nothing is started and nothing is changed.
        force: tune whether or not something triggered.
    """

    fire: float
    deadline: float
    dry_run: bool = False
    force: bool = False


class Pass:
    """One pass. The caller holds the lock.

    Args:
        spec: the `retune` part.
        tuner: the world.
        ledger: what was.
        switch: changes what is deployed.
        now: the clock, Unix seconds.
        rated: the study's load is a rate.
    """

    def __init__(
        self, spec: RetuneSpec, tuner: Tuner, ledger: Ledger, switch: Switch, now: Now, *, rated: bool = False
    ) -> None:
        self._spec = spec
        self._tuner = tuner
        self._ledger = ledger
        self._switch = switch
        self._now = now
        self._rated = rated
        self._gpu_hours = 0.0
        self._tuning: Tuning | None = None
        self._spent_before = 0.0
        self._reading: Reading | None = None
        self._said: list[str] = []
        self._judged = False
        self._decided: Ending | None = None

    async def run(self, call: Call) -> Ending:
        """Run the pass; its ending is in the ledger when this returns.

        Raises:
            asyncio.CancelledError: asked to give way; this is in the ledger too.
            SpecError: the study was never run, or its `retune` part is wrong.
        """
        began = self._now()
        try:
            ending = await self._decide(call)
            if self._judged:
                self._decided = ending
                await self._reference_canary(call)
        except GiveWay as given:
            self._gpu_hours += given.gpu_hours
            ending = Ending(Verdict.GAVE_WAY, (f"{given.reason}; the next pass goes on",))
        except EnvironmentFault as fault:
            ending = Ending(Verdict.ALERT, (str(fault),))
        except asyncio.CancelledError:
            if self._tuning is not None:
                self._gpu_hours += self._tuner.spent(self._tuning) - self._spent_before
            asked = Ending(Verdict.GAVE_WAY, ("asked to give way; the next pass goes on",))
            self._end(call, began, self._decided or asked)
            raise
        return self._end(call, began, ending)

    def _end(self, call: Call, began: float, ending: Ending) -> Ending:
        ending = ending.because(*self._said)
        if not call.dry_run:
            current = self._state().current
            if self._reading is not None:  # not before: what a killed pass has seen is looked at again
                self._ledger.add(self._reading)
            self._ledger.add(
                PassEnded(call.fire, began, self._now(), ending.verdict.value, ending.reasons, self._gpu_hours, current)
            )
        return ending

    def _state(self) -> State:
        return State.of(self._ledger.entries())

    async def _decide(self, call: Call) -> Ending:
        if call.dry_run and self._state().switch is not None:
            self._said.append("a change was interrupted: it would be undone first")
        if not call.dry_run and (recovered := await self._switch.recover()) is not None:
            self._said.extend(recovered.reasons)
        incumbent = await self._incumbent(call)
        sight = await self._tuner.look(self._state().reading)
        self._reading = sight.reading
        self._said.extend(sight.notes)
        state = self._state()
        if edits := self._switch.edits():
            self._said.append(f"what is deployed is not what was proven: {edits}")
        findings = self._cheap(state, sight)
        fired = [one for one in findings if one.fired]
        if state.pending is not None:
            ending = await self._pending(state, state.pending, fired, call)
            if ending is not None:
                return ending
        if state.tuning is not None:
            return await self._continue(state.tuning, sight, call)
        self._said.extend(f"{one.name}: {one.sentence}" for one in findings)
        if not fired and not call.force:
            if not call.dry_run:
                self._complete_reference(state, sight)
            return await self._look_closer(incumbent, sight, call)
        return await self._begin([one.sentence for one in fired] or ["asked for"], sight, call)

    async def _incumbent(self, call: Call) -> Version:
        """What is deployed; the first time it is taken to be what the study recommended."""
        if (known := self._state().incumbent) is not None:
            return known
        adopted = await self._tuner.adopt()
        files = self._switch.deployment.existing() or await self._tuner.render_adopted(adopted)
        config = adopted.config
        version = Version(
            1, config.args, config.env, 0, adopted.study, self._now(), adopted.sentence, adopted.gains,
            adopted.quality, files,
        )  # fmt: skip
        if call.dry_run:
            return version
        if self._state().version(1) is None:
            self._ledger.add(version)
        if self._state().reference is None:
            self._ledger.add(Reference(adopted.fingerprint, adopted.profile, self._now()))
        self._said.extend(self._switch.adopt(version).reasons)
        return version

    def _cheap(self, state: State, sight: Sight) -> list[Finding]:
        """Triggers that need no measurement."""
        triggers, reference = self._spec.triggers, state.reference
        found = []
        if triggers.fingerprint:
            found.append(fingerprint_finding(reference.fingerprint if reference else (), sight.fingerprint))
        else:
            found.append(Finding("fingerprint", False, "not watched"))
        if triggers.metrics_url or triggers.prometheus_url:
            profile = reference.profile if reference else None
            found.append(workload_finding(profile, sight.profile, triggers, rated=self._rated))
        return found

    def _complete_reference(self, state: State, sight: Sight) -> None:
        """What was not known when the configuration was tuned, and nobody has missed: later passes compare with it.

        That is the first profile with enough requests, and entries of the fingerprint that could not be read.
        """
        reference, seen = state.reference, sight.profile
        if reference is None:
            return
        known = dict(reference.fingerprint)
        fingerprint = tuple(sorted({**dict(sight.fingerprint), **known}.items()))
        enough = seen is not None and seen.requests >= self._spec.triggers.requests
        profile = seen if reference.profile is None and enough else reference.profile
        if (fingerprint, profile) != (tuple(sorted(known.items())), reference.profile):
            self._ledger.add(Reference(fingerprint, profile, self._now(), more=True))

    # -- what waits --------------------------------------------------------------------------------------------------

    async def _pending(self, state: State, version: Version, fired: list[Finding], call: Call) -> Ending | None:
        """Deploy what waits where it may be, else say what it waits for. None: it is out of date, look again."""
        if stale := out_of_date(state, version, [one.sentence for one in fired]):
            self._said.append(f"version {version.number} is not deployed: {stale}")
            if not call.dry_run:
                self._ledger.add(Dropped(version.number, self._now(), stale))
            return None
        if state.approved:
            return await self._promote(version, f"approved: {version.sentence}", call)
        if why := self._why_a_person(version):
            return _waits(version, why)
        return await self._promote(version, version.sentence, call)

    def _why_a_person(self, version: Version) -> str:
        manual = self._spec.promote.approval == "manual"
        return needs_a_person(self._state(), version, manual=manual, edits=self._switch.edits())

    async def _continue(self, tuning: Tuning, sight: Sight, call: Call) -> Ending:
        changed = fingerprint_finding(tuning.fingerprint, sight.fingerprint)
        current = self._state().current
        if tuning.version != current:
            text = f"version {tuning.version} was the incumbent, and version {current} is deployed now"
            changed = Finding("fingerprint", True, text)
        if changed.fired:
            self._said.append(f"the re-tuning of the last pass is given up: {changed.sentence}")
            return await self._begin([*tuning.reasons, changed.sentence], sight, call)
        text = f"with the re-tuning of the last pass ({'; '.join(tuning.reasons)})"
        if call.dry_run:
            return Ending(Verdict.DRY, (f"it would go on {text}", *self._switch.hooks.plan()))
        self._said.append(f"going on {text}")
        if (blocked := await self._blocked(call)) is not None:
            return blocked
        return await self._tune(tuning, call)

    # -- what is measured --------------------------------------------------------------------------------------------

    async def _look_closer(self, incumbent: Version, sight: Sight, call: Call) -> Ending:
        """Nothing cheap has triggered: ask the canary."""
        if not self._spec.triggers.canary:
            return self._nothing()
        if call.dry_run:
            return Ending(Verdict.DRY, ("the canary would be measured now",))
        if (blocked := await self._blocked(call)) is not None:
            return blocked
        finding = await self._canary(incumbent, call)
        if finding.again:
            self._said.append(f"canary: {finding.sentence}, so it is measured again")
            if (blocked := await self._blocked(call)) is not None:
                return blocked
            finding = await self._canary(incumbent, call)
        if finding.alert:
            return Ending(Verdict.ALERT, (f"canary: {finding.sentence}",))
        self._said.append(f"canary: {finding.sentence}")
        if finding.fired:
            return await self._begin([finding.sentence], sight, call)
        return self._nothing()

    async def _canary(self, incumbent: Version, call: Call) -> Finding:
        """Measure once; the reading is in the ledger, and judged with those before it."""
        number = len(self._state().passes) + 1
        result = await self._tuner.canary(_config(incumbent), number, self._seconds(call))
        self._gpu_hours += result.gpu_hours
        reading = Canary(
            incumbent.number, canary_median(result.incumbent), canary_median(result.baseline), self._now(),
            result.problem,
        )  # fmt: skip
        self._ledger.add(reading)
        return canary_finding(self._state().canaries, self._spec.triggers.canary_drop)

    async def _reference_canary(self, call: Call) -> None:
        """Measure what is deployed after a tuning, while the machine is what it was tuned on.

        The first canary of a later pass would stand for it otherwise, and a card that throttles by then would never be
        seen. It changes no decision: where there is no time for it, that first one has to do.
        """
        incumbent = self._state().incumbent
        if incumbent is None or not self._spec.triggers.canary or await self._blocked(call) is not None:
            return
        try:
            await self._canary(incumbent, call)
        except GiveWay as given:
            self._gpu_hours += given.gpu_hours
        except EnvironmentFault as fault:
            self._said.append(f"no canary to compare later ones with: {fault}")

    def _nothing(self) -> Ending:
        return Ending(Verdict.NOTHING, ("nothing triggered: what runs today stays",))

    async def _blocked(self, call: Call) -> Ending | None:
        """Why nothing may be started now."""
        left = self._hours_left()
        if left is not None and left <= 0:
            limit, spent = self._spec.budget.gpu_hours_per_month, self._month()
            if limit is not None and spent >= limit:
                return Ending(Verdict.BLOCKED, (f"{spent:.1f} of {limit:g} GPU hours of the last 30 days are spent",))
            return Ending(Verdict.GAVE_WAY, ("the GPU hours of a pass are spent; the next pass goes on",))
        if self._seconds(call) < LEAST_SECONDS:
            return Ending(Verdict.GAVE_WAY, ("no time is left in this pass; the next pass goes on",))
        if reasons := await self._tuner.obstacles():
            return Ending(Verdict.BLOCKED, (f"nothing is started: {'; '.join(reasons)}",))
        return None

    def _month(self) -> float:
        """GPU hours of the last 30 days, this pass included."""
        now = self._now()
        return self._state().gpu_hours(now - MONTH_S, now) + self._gpu_hours

    def _hours_left(self) -> float | None:
        """GPU hours that may still be spent; None where nothing limits them."""
        budget = self._spec.budget
        left = [] if budget.gpu_hours is None else [budget.gpu_hours - self._gpu_hours]
        if budget.gpu_hours_per_month is not None:
            left.append(budget.gpu_hours_per_month - self._month())
        return min(left, default=None)

    def _seconds(self, call: Call) -> float:
        """Seconds for what is started now: until the deadline, or until busy GPUs have spent their hours."""
        left = self._hours_left()
        until = call.deadline - self._now()
        return until if left is None else min(until, left * 3600 / max(1, self._tuner.gpus()))

    # -- tuning ------------------------------------------------------------------------------------------------------

    async def _begin(self, reasons: list[str], sight: Sight, call: Call) -> Ending:
        if call.dry_run:
            return Ending(Verdict.DRY, (f"it would tune again: {'; '.join(reasons)}", *self._switch.hooks.plan()))
        if (blocked := await self._blocked(call)) is not None:
            return blocked
        state = self._state()
        profile = sight.profile or (state.reference.profile if state.reference else None)
        moved = any(one.name == "workload" and one.fired for one in self._cheap(state, sight))
        number = sum(isinstance(entry, Tuning) for entry in self._ledger.entries()) + 1
        tuning = Tuning(
            self._tuner.folder(number), tuple(reasons), sight.fingerprint, profile, state.current, self._now(),
            moved=moved,
        )  # fmt: skip
        self._ledger.add(tuning)
        return await self._tune(tuning, call)

    async def _tune(self, tuning: Tuning, call: Call) -> Ending:
        incumbent = self._state().version(tuning.version)
        assert incumbent is not None
        against = self._tuner.baseline() if tuning.fallback else _config(incumbent)
        self._tuning, self._spent_before = tuning, self._tuner.spent(tuning)
        # A pass that was killed has told no cost; what it spent on this re-tuning counts in this one.
        told = self._state().gpu_hours(tuning.at, self._now()) + self._gpu_hours
        self._gpu_hours += max(0.0, self._spent_before - told)
        tuned = await self._tuner.tune(tuning, against, self._seconds(call))
        self._tuning = None
        self._gpu_hours += tuned.gpu_hours
        if tuned.illegal:
            return await self._fall_back(tuning, tuned, call)
        return await self._judge(tuning, tuned, call)

    async def _fall_back(self, tuning: Tuning, tuned: Tuned, call: Call) -> Ending:
        """The incumbent cannot serve: tune against the study's own baseline, unless that is what cannot serve."""
        incumbent = self._state().version(tuning.version)
        assert incumbent is not None
        same = _config(incumbent) == self._tuner.baseline()
        if tuning.fallback or same:
            text = f"neither the incumbent nor the study's baseline can serve: {tuned.illegal}"
            return Ending(Verdict.ALERT, (f"{text}; correct `baseline.args`",))
        self._said.append(f"the incumbent cannot serve any more ({tuned.illegal}); the study's baseline stands in")
        number = sum(isinstance(entry, Tuning) for entry in self._ledger.entries()) + 1
        again = replace(tuning, folder=self._tuner.folder(number), at=self._now(), fallback=True)
        self._ledger.add(again)
        return await self._tune(again, call)

    async def _judge(self, tuning: Tuning, tuned: Tuned, call: Call) -> Ending:
        self._judged = True
        judgement = judge(tuned, self._spec.promote.margin, fallback=tuning.fallback)
        if not judgement.promote:
            self._ledger.add(Reference(tuning.fingerprint, tuning.profile, self._now()))
            return Ending(Verdict.KEPT, (judgement.sentence,))
        number = max(one.number for one in self._state().versions) + 1
        version = Version(
            number, tuned.config.args, tuned.config.env, tuning.version, tuned.study, self._now(),
            judgement.sentence, tuned.gains, tuned.quality, await self._tuner.render(tuned),
        )  # fmt: skip
        self._ledger.add(version)
        if why := self._why_a_person(version):
            return _waits(version, why)
        return await self._promote(version, judgement.sentence, call)

    async def _promote(self, version: Version, why: str, call: Call) -> Ending:
        if call.dry_run:
            return Ending(
                Verdict.DRY, (f"version {version.number} would be deployed: {why}", *self._switch.hooks.plan())
            )
        try:
            return await self._switch.to(version, "promote", why)
        except asyncio.CancelledError:
            deployed = self._state().current
            self._said.append(f"the change to version {version.number} was ended first: version {deployed} runs")
            raise


def _waits(version: Version, why: str) -> Ending:
    text = f"version {version.number} waits for `autotune approve` ({why}): {version.sentence}"
    return Ending(Verdict.WAITING, (text,))


def _config(version: Version) -> EngineConfig:
    return EngineConfig(version.args, version.env)
