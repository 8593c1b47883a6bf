"""Puts the parts of re-tuning together for one study: locks, ledger, tuner, switch, metrics."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from autotune.assembly import StudyParts
from autotune.errors import EnvironmentFault, SpecError
from autotune.events import Observer, Silent
from autotune.export.registry import EXPORTERS
from autotune.host.gpus import read_gpus
from autotune.host.state import state_dir
from autotune.retune.deploy import Deployment
from autotune.retune.driver import StudyTuner
from autotune.retune.hooks import StudyHooks
from autotune.retune.ledger import Approval, State, StoreLedger
from autotune.retune.metrics import metrics_text, write_metrics
from autotune.retune.onepass import Call, Pass
from autotune.retune.promotion import Switch
from autotune.retune.schedule import Schedule
from autotune.retune.service import call_at, in_window
from autotune.retune.verdict import Ending, Verdict
from autotune.spec.retune import RetuneSpec
from autotune.store import Store
from autotune.study import Study

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
        deployment = Deployment(home / self.spec.promote.out)
        return Switch(self.study.spec.name, self.ledger, deployment, hooks, self.now)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the study and its GPUs: one pass at a time.

        Raises:
            EnvironmentFault: another pass or run has them.
        """
        with ExitStack() as stack:
            stack.enter_context(self.study.locked())
            for name in _resources(self.study):
                lock = FileLock(state_dir() / f"retune-{name}.lock", timeout=0)
                try:
                    stack.enter_context(lock)
                except Timeout:
                    hint = "wait for it; passes on the same GPUs run one after the other"
                    raise EnvironmentFault(f"another pass is using {name}", hint=hint) from None
            yield

    async def run(self, call: Call) -> Ending:
        """Run a pass under the locks, and write the metrics.

        Raises:
            EnvironmentFault: another pass has the GPUs.
        """
        with self.locked():
            self._take_approval()
            tuner = StudyTuner(self.study, self.spec, self.observer)
            rated = self.study.spec.load.arrivals in RATES
            try:
                return await Pass(self.spec, tuner, self.ledger, self.switch, self.now, rated=rated).run(call)
            finally:
                self._write_metrics()

    async def run_now(self, *, dry_run: bool = False, force: bool = False, anytime: bool = False) -> Ending:
        """One pass for whoever calls from outside (cron, a timer, CI). Outside its windows nothing is done.

        Args:
            dry_run: say what would be done.
            force: tune although nothing has triggered.
            anytime: windows do not count.
        """
        now = self.now()
        if not in_window(self.schedule, now) and not (dry_run or anytime):
            return Ending(Verdict.BLOCKED, ("no maintenance window is open now; --anytime does not wait for one",))
        call = call_at(self.schedule, self.spec.budget.time, now, now)
        if anytime:
            call = Call(now, now + self.spec.budget.time)
        return await self.run(Call(call.fire, call.deadline, dry_run, force))

    def _take_approval(self) -> None:
        """Read a file that approves the waiting version; it is used up."""
        pending = self.state.pending
        file = approval_file(self.study, pending.number) if pending is not None else None
        if pending is not None and file is not None and file.exists():
            self.ledger.add(Approval(pending.number, True, f"file {file.name}", self.now()))
            file.unlink()

    def _write_metrics(self) -> None:
        if self.spec.metrics_file is not None:
            path = self.study.path.parent / self.spec.metrics_file
            write_metrics(path, metrics_text(self.study.spec.name, self.state))


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
