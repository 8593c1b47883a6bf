"""Whether a new configuration may go to production, and the change itself: hooks, files, ledger, and the way back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from autotune.errors import AutotuneError, SpecError
from autotune.retune.deploy import MISSING, Deployment
from autotune.retune.hooks import HookEvent, Hooks
from autotune.retune.ledger import Gain, Ledger, SwitchBegan, SwitchEnded, Version
from autotune.retune.state import State
from autotune.retune.verdict import Ending, Verdict
from autotune.space.config import EngineConfig

Now = Callable[[], float]


@dataclass(frozen=True)
class Tuned:
    """What a re-tuning found.

    Attributes:
        config: the recommendation; the baseline where nothing better was proven.
        proven: the confirmation claims an improvement over the baseline, with all limits and the quality gate held.
        gains: against the baseline, from fresh interleaved starts.
        sentence: the claim.
        quality: one sentence.
        illegal: why the baseline cannot serve; empty where it can.
        study: folder of the study.
        gpu_hours: what it cost in this pass.
    """

    config: EngineConfig
    proven: bool
    gains: tuple[Gain, ...]
    sentence: str
    quality: str
    study: str
    gpu_hours: float
    illegal: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether to promote, and why or why not."""

    promote: bool
    sentence: str


def judge(tuned: Tuned, margin: float, *, fallback: bool = False) -> Judgement:
    """The rule of promotion.

    The incumbent has the benefit of the doubt (hysteresis): the lower bound of the paired gain must pass the margin in
    the first objective, or in another one while the first is not worse by more than the margin.

    Args:
        tuned: what was found.
        margin: relative gain.
        fallback: the incumbent cannot serve, so the comparison was with the study's own baseline; whichever of the two
            is better replaces it.
    """
    passed, sentence = _passes(tuned, margin)
    if not fallback:
        return Judgement(passed, sentence)
    which = f"its replacement: {sentence}" if passed else f"the study's baseline replaces it ({sentence})"
    return Judgement(True, f"the incumbent cannot serve any more; {which}")


def _passes(tuned: Tuned, margin: float) -> tuple[bool, str]:
    if not tuned.proven or not tuned.gains:
        return False, f"the incumbent stays: {tuned.sentence}"
    first, others = tuned.gains[0], tuned.gains[1:]
    if first[2] > 1 + margin:
        return True, f"{_text(first)}, and its lower bound passes the margin of {margin:.0%}"
    gained = next((gain for gain in others if gain[2] > 1 + margin), None)
    if gained is not None and first[2] > 1 - margin:
        return True, f"{_text(gained)} passes the margin of {margin:.0%}, and {first[0]} is not worse"
    return False, f"{_text(first)}: the lower bound does not pass the margin of {margin:.0%}, so the incumbent stays"


def _text(gain: Gain) -> str:
    return f"x{gain[1]:.3f} [{gain[2]:.3f}, {gain[3]:.3f}] in {gain[0]}"


@dataclass(frozen=True)
class Switch:
    """Changes what is deployed, and back where a hook fails.

    Attributes:
        study: its name, for hooks.
    """

    study: str
    ledger: Ledger
    deployment: Deployment
    hooks: Hooks
    now: Now

    def state(self) -> State:
        """What the ledger says now."""
        return State.of(self.ledger.entries())

    async def to(self, version: Version, change: Literal["promote", "rollback"], why: str) -> Ending:
        """Deploy `version`. Everything is undone where a hook or a file fails.

        A switch is short and is not left half-done: one that is asked to give way ends first.

        Raises:
            asyncio.CancelledError: asked to give way; the switch has ended, and the ledger says how.
            SpecError: the target is no place for these files.
            EnvironmentFault: what was edited there by hand cannot be kept.
        """
        self.deployment.check(version.files)
        task = asyncio.ensure_future(self._to(version, change, why))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait({task})
            raise

    async def _to(self, version: Version, change: Literal["promote", "rollback"], why: str) -> Ending:
        before = self.state().incumbent
        self.ledger.add(SwitchBegan(before.number if before else 0, version.number, self.now(), why, change))
        event = self._event(change, version, before, why)
        if (problem := await self.hooks.run("before", event, self.now())) is not None:
            return self._ended(before, f"{problem}; nothing was changed", held=True)
        problem, kept = self._install(version)
        problem = problem or await self.hooks.run("after", event, self.now())
        if problem is not None:
            return await self._undo(before, version, problem, held=True)
        done = "deployed" if change == "promote" else "restored"
        sentence = f"version {version.number} is {done} at {self.deployment.path}{kept}"
        self.ledger.add(SwitchEnded(version.number, self.now(), sentence))
        return Ending(Verdict.PROMOTED if change == "promote" else Verdict.ROLLED_BACK, (why, sentence))

    def edits(self) -> str:
        """In what the deployed files are not those of the incumbent, as a sentence; empty where they are."""
        incumbent = self.state().incumbent
        found = self.deployment.edits(incumbent) if incumbent is not None else ()
        if incumbent is None or not found:
            return ""
        if all(text.endswith(MISSING) for text in found) and len(found) == len(incumbent.files):
            again = f"`autotune rollback --to {incumbent.number}` deploys it again"
            return f"nothing of version {incumbent.number} is in {self.deployment.path} ({again})"
        return f"somebody changed {self.deployment.path} by hand ({', '.join(found)})"

    def adopt(self, version: Version) -> Ending:
        """Take over what runs already as the first version: its files are there or are written, and no hook is called.

        Raises:
            EnvironmentFault: they cannot be written.
        """
        self.deployment.check(version.files)
        self.deployment.claim()
        self.ledger.add(SwitchBegan(0, version.number, self.now(), "taken over", "adopt"))
        if not self.deployment.existing():
            self.deployment.install(version)
        sentence = f"what the study recommended is version {version.number}, in {self.deployment.path}"
        self.ledger.add(SwitchEnded(version.number, self.now(), sentence))
        return Ending(Verdict.PROMOTED, (sentence,))

    async def recover(self) -> Ending | None:
        """Undo a switch that was killed half-way; None where there was none."""
        state = self.state()
        if state.switch is None:
            return None
        before, after = state.version(state.switch.before), state.version(state.switch.after)
        assert after is not None
        if before is None:
            return self._ended(None, "taking over what runs already was interrupted", held=False)
        return await self._undo(before, after, "the change was interrupted", held=False)

    async def _undo(self, before: Version | None, failed: Version, problem: str, *, held: bool) -> Ending:
        if before is None:
            return self._ended(None, f"{problem}; there is no earlier version", held=held)
        again, kept = self._install(before)
        event = self._event("restore", before, failed, problem)
        again = again or await self.hooks.run("after", event, self.now())
        text = f"{problem}; version {before.number} is deployed again{kept}"
        return self._ended(before, f"{text}, but {again}" if again else text, held=held)

    def _install(self, version: Version) -> tuple[str | None, str]:
        """What went wrong, and where edits by hand were kept, as the end of a sentence."""
        try:
            kept = self._keep_edits()
            self.deployment.install(version)
        except AutotuneError as error:
            return str(error), ""
        return None, kept

    def _keep_edits(self) -> str:
        """What is deployed and is no version as it is in the history was edited by hand: it stays somewhere."""
        found = [self.deployment.edits(version) for version in self.state().versions]
        if not found or any(all(text.endswith(MISSING) for text in edits) for edits in found):
            return ""
        return f"; what was edited by hand is kept in {self.deployment.set_aside()}"

    def _ended(self, current: Version | None, sentence: str, *, held: bool) -> Ending:
        self.ledger.add(SwitchEnded(current.number if current else 0, self.now(), sentence, held))
        return Ending(Verdict.ROLLED_BACK, (sentence,))

    def _event(
        self, change: Literal["promote", "rollback", "restore"], version: Version, other: Version | None, why: str
    ) -> HookEvent:
        number = other.number if other else 0
        return HookEvent(
            self.study, change, version.number, number, str(self.deployment.path), why, version.gains
        )  # fmt: skip


def version_to_restore(state: State, number: int | None) -> Version:
    """The version that `autotune rollback` restores; without a number the one before the present one.

    Raises:
        SpecError: there is none of that number, or none before.
    """
    known = ", ".join(str(one.number) for one in state.versions)
    if number is None:
        incumbent = state.incumbent
        found = state.version(incumbent.before) if incumbent is not None else None
        if found is None:
            raise SpecError("there is no version before the present one", hint=f"known versions: {known or 'none'}")
        return found
    found = state.version(number)
    if found is None:
        raise SpecError(f"there is no version {number}", hint=f"known versions: {known or 'none'}")
    return found
