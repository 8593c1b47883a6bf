"""One study, start to end: propose, measure, keep, stop, confirm. What a trial is stands in `autotune.trial`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from autotune.assembly import StudyParts
from autotune.engine.keeper import EngineKeeper
from autotune.errors import EnvironmentFault
from autotune.events import ConfirmationStarted, Observer, StudyFinished, StudyStarted, TrialFinished, TrialStarted
from autotune.outcome import Broken, Infeasible, Measured, Proposal, TrialRecord
from autotune.result import StudyResult
from autotune.store import Store
from autotune.trial import Bench, run_trial

MAX_ATTEMPTS = 3
"""A broken trial is repeated twice; then its configuration is given up."""
SICK_AFTER = 3
"""So many broken trials in a row mean that the machine is sick, not the configurations."""


@dataclass(frozen=True, slots=True)
class _Job:
    proposal: Proposal
    attempt: int = 1
    fresh: bool = False


class StudyRun:
    """Runs one study. The store must be locked by the caller.

    Args:
        parts: everything the study is made of.
        store: where records go.
        observer: is told what happens.
    """

    def __init__(self, parts: StudyParts, store: Store, observer: Observer) -> None:
        self._parts = parts
        self._store = store
        self._observer = observer
        self._records: list[TrialRecord] = []
        self._queue: deque[_Job] = deque()
        self._running: dict[int, Proposal] = {}
        self._number = 0
        self._broken_in_a_row = 0
        self._asking = asyncio.Lock()
        self._stop_reason = ""

    async def run(self) -> StudyResult:
        """Search until the stop rule fires, confirm, and return the result.

        Raises:
            EnvironmentFault: the machine does not allow to go on; everything finished is kept.
            asyncio.CancelledError: interrupted; the engines are stopped and the study can go on later.
        """
        self._resume()
        parts = self._parts
        self._observer.notify(
            StudyStarted(
                parts.spec.name,
                parts.folder,
                parts.spec.search.trials,
                tuple(self._records),
                simulated=parts.spec.engine.kind == "simulated",
                notes=parts.notes,
            )
        )
        async with AsyncExitStack() as stack:
            benches = [await self._bench(stack, slot) for slot in range(parts.spec.hardware.parallel_trials)]
            await self._search(benches)
            result = await self._prove(benches[0])
        self._observer.notify(StudyFinished(self._stop_reason, result.summary))
        return result

    # -- before ------------------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Take up what the store holds: finished trials count, a killed one is queued again."""
        self._records = list(self._store.history())
        for lost in self._store.interrupted():
            self._add(
                TrialRecord(
                    number=lost.number,
                    proposal=lost.proposal,
                    outcome=Broken("interrupted", "the run was interrupted while this trial ran", retry=lost.attempt < MAX_ATTEMPTS),
                    started_at=0.0,
                    seconds=0.0,
                    attempt=lost.attempt,
                )
            )
            if lost.attempt < MAX_ATTEMPTS and lost.proposal.origin not in ("confirm", "minimise"):
                self._queue.append(_Job(lost.proposal, lost.attempt + 1))
        self._number = self._store.next_number()
        if not any(record.proposal.origin == "baseline" and not isinstance(record.outcome, Broken) for record in self._records):
            queued = any(job.proposal.origin == "baseline" for job in self._queue)
            if not queued:
                self._queue.appendleft(_Job(self._parts.baseline_proposal()))
        self._parts.proposer_replay(self._records)

    async def _bench(self, stack: AsyncExitStack, slot: int) -> Bench:
        parts = self._parts
        lease = await stack.enter_async_context(parts.lease(slot))
        client = await stack.enter_async_context(parts.load_client())
        keeper = EngineKeeper(parts.engine, lease, live=parts.spec.engine.live)
        stack.push_async_callback(keeper.release)
        return Bench(
            spec=parts.spec,
            keeper=keeper,
            client=client,
            preflight=parts.preflight,
            gate=parts.gate,
            folder=parts.folder,
            observer=self._observer,
            environment=parts.environment,
            vocabulary=parts.vocabulary,
        )

    # -- search ------------------------------------------------------------------------------------------------------

    async def _search(self, benches: Sequence[Bench]) -> None:
        """Let every bench take proposals until the stop rule fires."""
        async with asyncio.TaskGroup() as group:
            for bench in benches:
                group.create_task(self._work(bench))

    async def _work(self, bench: Bench) -> None:
        while (job := await self._next(bench)) is not None:
            await self._run(bench, job)
            while bench is not None and self._baseline_pending():
                await asyncio.sleep(0.2)  # with several benches, the baseline must be known before others go on

    def _baseline_pending(self) -> bool:
        running = any(proposal.origin == "baseline" for proposal in self._running.values())
        return running and not self._baseline_known()

    def _baseline_known(self) -> bool:
        return any(r.proposal.origin == "baseline" and not isinstance(r.outcome, Broken) for r in self._records)

    async def _next(self, bench: Bench) -> _Job | None:
        """What to run next, or None when the search is over."""
        async with self._asking:
            while self._baseline_pending():
                await asyncio.sleep(0.2)
            if self._queue:
                return self._queue.popleft()
            if self._stop_reason:
                return None
            if (reason := self._parts.stop_reason(self._records)) is not None:
                self._stop_reason = reason
                return None
            if self._parts.sentinel_due(self._records):
                return _Job(replace(self._parts.baseline_proposal(), origin="sentinel"))
            running = tuple(self._running.values())
            proposal = await asyncio.to_thread(self._parts.proposer.propose, tuple(self._records), running=running)
            if proposal is None:
                self._stop_reason = "every configuration of the space has been tried"
                return None
            return _Job(proposal)

    async def _run(self, bench: Bench, job: _Job) -> TrialRecord:
        """Run one job, keep its record, and decide whether it is repeated."""
        number, self._number = self._number, self._number + 1
        proposal = job.proposal
        self._running[number] = proposal
        self._store.begin(number, job.attempt, proposal)
        self._observer.notify(TrialStarted(number, proposal, self._expected_s()))
        try:
            record = await run_trial(bench, proposal, number, attempt=job.attempt, fresh=job.fresh)
        finally:
            self._running.pop(number, None)
        again = isinstance(record.outcome, Broken) and record.outcome.retry and job.attempt < MAX_ATTEMPTS
        self._add(record)
        self._observer.notify(TrialFinished(record, retried=again))
        if again:
            self._queue.appendleft(replace(job, attempt=job.attempt + 1, fresh=True))
        self._check_health(record)
        return record

    def _add(self, record: TrialRecord) -> None:
        """Keep a record: our own table first, then the views of it."""
        self._store.add(record)
        self._records.append(record)
        self._parts.told(record)

    def _check_health(self, record: TrialRecord) -> None:
        outcome = record.outcome
        if not isinstance(outcome, Broken):
            self._broken_in_a_row = 0
            if record.proposal.origin == "baseline" and isinstance(outcome, Infeasible):
                raise EnvironmentFault(
                    f"the baseline cannot serve: {outcome.reason}",
                    hint="a study compares with a baseline that works; correct `baseline.args` or `engine.args`",
                )
            return
        self._broken_in_a_row += 1
        if outcome.stop:
            raise EnvironmentFault(f"trial {record.number}: {outcome.cause}: {outcome.reason}", hint="the study is kept; repair this and run it again")
        if self._broken_in_a_row >= SICK_AFTER:
            raise EnvironmentFault(
                f"{SICK_AFTER} trials in a row broke, the last one with {outcome.cause}: {outcome.reason}",
                hint=f"see {record.folder}; the study is kept, repair the machine and run it again",
            )

    def _expected_s(self) -> float | None:
        times = sorted(record.seconds for record in self._records if isinstance(record.outcome, Measured))
        return times[len(times) // 2] if times else None

    # -- proof -------------------------------------------------------------------------------------------------------

    async def _prove(self, bench: Bench) -> StudyResult:
        """Measure the finalists and the baseline again, interleaved, on fresh starts."""
        while (proposals := self._parts.confirmation_runs(self._records)):
            self._observer.notify(ConfirmationStarted(self._stop_reason, len(proposals)))
            for proposal in proposals:
                await self._run_until_settled(bench, _Job(proposal, fresh=True))
        result = self._parts.result(self._records, self._stop_reason)
        self._store.put("recommendation", "final", result.to_json())
        return result

    async def _run_until_settled(self, bench: Bench, job: _Job) -> None:
        await self._run(bench, job)
        while self._queue:
            await self._run(bench, self._queue.popleft())
