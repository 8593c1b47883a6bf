"""Puts the parts of re-tuning together for one study: locks, ledger, tuner, switch, metrics."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from autotune.assembly import StudyParts
from autotune.errors import Busy, SpecError
from autotune.events import Observer, Silent
from autotune.export.registry import EXPORTERS
from autotune.host.gpus import read_gpus
from autotune.host.state import state_dir
from autotune.retune.deploy import Deployment
from autotune.retune.driver import StudyTuner
from autotune.retune.hooks import StudyHooks
from autotune.retune.ledger import Approval, PassEnded, StoreLedger, Version
from autotune.retune.metrics import metrics_text, write_metrics
from autotune.retune.onepass import Call, Pass
from autotune.retune.promotion import Switch, version_to_restore
from autotune.retune.schedule import Schedule
from autotune.retune.service import call_at, in_window
from autotune.retune.state import State
from autotune.retune.verdict import Ending, Verdict
from autotune.spec.retune import RetuneSpec
from autotune.store import Store
from autotune.study import Study

TURN_S = 15.0
"""A pass that waits for its turn looks so often whether it has come."""
RATES = ("constant", "poisson", "gamma")


def _silent(_: StudyParts) -> Observer:
    return Silent()


@dataclass(frozen=True)
class Session:
    """Re-tuning of one study; its database is open.

    Attributes:
        study: the study.
        spec: its `retune` part, or the defaults.
        ledger: in the study's database.
        observer: what watches studies that run here.
        now: the clock, Unix seconds.
    """

    study: Study
    spec: RetuneSpec
    ledger: StoreLedger
    observer: Callable[[StudyParts], Observer] = _silent
    now: Callable[[], float] = time.time

    @property
    def state(self) -> State:
        """What the ledger says now."""
        return State.of(self.ledger.entries())

    @property
    def schedule(self) -> Schedule:
        """When passes start."""
        return Schedule.of(self.spec, f"{self.study.spec.name}@{socket.gethostname()}")

    @property
    def switch(self) -> Switch:
        """Changes what is deployed."""
        home = self.study.path.absolute().parent
        hooks = StudyHooks(self.spec.hooks, self.study.folder / "retune" / "hooks", home, os.environ)
        deployment = Deployment(home / self.spec.promote.out, self.study.spec.name)
        return Switch(self.study.spec.name, self.ledger, deployment, hooks, self.now)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the study and its GPUs: one pass at a time.

        Raises:
            Busy: another pass or run has them.
        """
        with ExitStack() as stack:
            stack.enter_context(self.study.locked())
            for name in _resources(self.study):
                lock = FileLock(state_dir() / f"retune-{name}.lock", timeout=0)
                try:
                    stack.enter_context(lock)
                except Timeout:
                    hint = "wait for it; passes on the same GPUs run one after the other"
                    raise Busy(f"another pass is using {name}", hint=hint) from None
            yield

    async def run_scheduled(self, call: Call, say: Callable[[str], None]) -> Ending:
        """The pass of a scheduled time. Where another one has the GPUs it waits for its turn, while its window is open.

        Args:
            call: for which time; how long it may take is counted from when its turn comes.
            say: is told that it waits.
        """
        patience, waits = self._patience(), ""
        while True:
            try:
                with self.locked():
                    handled = self.state.handled(self.now())
                    if handled is not None and handled >= call.fire:
                        return Ending(Verdict.NOTHING, ("another service has run the pass of this time",))
                    return await self._pass(call_at(self.schedule, self.spec.budget.time, call.fire, self.now()))
            except Busy as busy:
                if self.now() + TURN_S > patience:
                    return self._not_started(call, busy)
                if busy.message != waits:
                    waits = busy.message
                    say(f"{waits}: waiting for it")
            await asyncio.sleep(TURN_S)

    async def run_now(self, *, dry_run: bool = False, force: bool = False, anytime: bool = False) -> Ending:
        """One pass for whoever calls from outside (cron, a timer, CI). Outside its windows nothing is measured.

        Args:
            dry_run: say what would be done.
            force: tune although nothing has triggered.
            anytime: windows do not count.
        """
        now = self.now()
        call = call_at(self.schedule, self.spec.budget.time, now, now)
        if anytime:
            call = Call(now, now + self.spec.budget.time)
        try:
            with self.locked():
                if not in_window(self.schedule, now) and not (dry_run or anytime):
                    undone = await self.switch.recover()
                    text = "no maintenance window is open now; --anytime does not wait for one"
                    return Ending(Verdict.BLOCKED, (*(undone.reasons if undone else ()), text))
                return await self._pass(Call(call.fire, call.deadline, dry_run, force))
        except Busy as busy:
            return Ending(Verdict.BLOCKED, (str(busy),)) if dry_run else self._not_started(call, busy)

    async def recover(self) -> Sequence[str]:
        """Undo a change that was killed half-way, now and not at the next pass; what was done."""
        try:
            with self.locked():
                ending = await self.switch.recover()
        except Busy:
            return ()  # who holds the lock does it, or is in the middle of a change
        if ending is not None:
            self._write_metrics()
        return ending.reasons if ending is not None else ()

    async def roll_back(self, number: int | None, *, dry_run: bool = False) -> tuple[Ending, bool]:
        """Deploy an earlier version again; the ending, and whether that version is deployed now.

        Args:
            number: of the version; None is the one before the present one.
            dry_run: say what would be done.

        Raises:
            Busy: a pass is running.
            SpecError: there is no such version.
        """
        with self.locked():
            undone = None if dry_run else await self.switch.recover()
            version = version_to_restore(self.state, number)
            switch = self.switch
            if version.number == self.state.current and not switch.edits():
                ending = Ending(Verdict.NOTHING, (f"version {version.number} is what is deployed",))
            elif dry_run:
                said = f"version {version.number} would be deployed: {version.sentence}"
                edits = (f"replaced would be: {edits}",) if (edits := switch.edits()) else ()
                return Ending(Verdict.DRY, (said, *edits, *switch.hooks.plan())), True
            else:
                ending = await switch.to(version, "rollback", "asked for")
            self._write_metrics()
            return ending.because(*(undone.reasons if undone else ())), self.state.current == version.number

    def decide(self, version: int | None, by: str, *, granted: bool) -> Version:
        """A person agrees to the version that waits, or refuses it.

        Args:
            version: its number; None is the one that waits.
            by: who.
            granted: agreed.

        Raises:
            SpecError: that version does not wait.
        """
        pending = self.state.pending
        if pending is None or (version is not None and version != pending.number):
            waits = f"version {pending.number} waits" if pending else "nothing waits"
            wanted = f"version {version}" if version is not None else "a version"
            hint = f"{waits}; see: autotune history {self.study.path}"
            raise SpecError(f"{wanted} does not wait for approval", hint=hint)
        self.ledger.add(Approval(pending.number, granted, by, self.now()))
        self._write_metrics()
        return pending

    async def _pass(self, call: Call) -> Ending:
        if not call.dry_run:
            self._take_approval()
        tuner = StudyTuner(self.study, self.spec, self.observer, self.now)
        rated = self.study.spec.load.arrivals in RATES
        try:
            return await Pass(self.spec, tuner, self.ledger, self.switch, self.now, rated=rated).run(call)
        finally:
            if not call.dry_run:
                self._write_metrics()

    def _not_started(self, call: Call, busy: Busy) -> Ending:
        """A pass that did not get its turn; kept, so that its time is not silently lost."""
        now = self.now()
        ending = Ending(Verdict.BLOCKED, (str(busy),))
        self.ledger.add(PassEnded(call.fire, now, now, ending.verdict.value, ending.reasons, 0.0, self.state.current))
        self._write_metrics()
        return ending

    def _patience(self) -> float:
        """Until when a scheduled pass waits for its turn: its window, else the next scheduled time."""
        moment = datetime.fromtimestamp(self.now(), UTC)
        ends = self.schedule.windows.opening(moment).ends
        return (ends if ends is not None else self.schedule.cron.after(moment)).timestamp()

    def _take_approval(self) -> None:
        """Read a file that approves the waiting version; it is used up."""
        pending = self.state.pending
        file = approval_file(self.study, pending.number) if pending is not None else None
        if pending is not None and file is not None and file.exists():
            self.ledger.add(Approval(pending.number, True, f"file {file.name}", self.now()))
            file.unlink()

    def metrics(self) -> str:
        """The tuner's own figures in Prometheus' text format."""
        return metrics_text(self.study.spec.name, self.state, self.spec.triggers.canary_drop)

    def _write_metrics(self) -> None:
        if self.spec.metrics_file is not None:
            write_metrics(self.study.path.parent / self.spec.metrics_file, self.metrics())


def _resources(study: Study) -> tuple[str, ...]:
    """Names of what a pass takes: its GPUs, or the processors."""
    spec = study.spec
    if spec.engine.kind in ("simulated", "endpoint"):
        return ()
    if spec.engine.python == "cpu":
        return ("cpu",)
    devices = spec.hardware.devices or [gpu.index for gpu in read_gpus().gpus]
    return tuple(f"gpu-{index}" for index in sorted(devices))


@contextmanager
def opened(study: Study, observer: Callable[[StudyParts], Observer] = _silent) -> Iterator[Session]:
    """The session of a study that has been run; its database is closed at the end.

    Raises:
        SpecError: it has never been run, or its `retune` part names what does not exist.
    """
    spec = study.spec.retune or RetuneSpec()
    if spec.promote.format not in EXPORTERS:
        hint = f"one of {', '.join(EXPORTERS)}"
        raise SpecError(
            f"{spec.promote.format!r} is no format", file=study.path, key="retune.promote.format", hint=hint
        )
    store: Store = study.existing_store()
    try:
        yield Session(study, spec, StoreLedger(store), observer)
    finally:
        store.close()


def approval_file(study: Study, version: int) -> Path:
    """A file whose existence approves a version, for those who approve by a tool of their own."""
    return study.folder / "retune" / f"approve-{version:04d}"
