"""One study, start to end: propose, measure, keep, stop, confirm. What a trial is stands in `autotune.trial`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.engine.keeper import EngineKeeper
from autotune.errors import EnvironmentFault
from autotune.events import ConfirmationStarted, Observer, StudyFinished, StudyStarted, TrialFinished, TrialStarted
from autotune.outcome import Broken, Infeasible, Measured, Proposal, TrialRecord
from autotune.result import StudyResult
from autotune.search.health import MachineHealth, has_another_attempt
from autotune.store import Store
from autotune.trial import Bench, run_trial

if TYPE_CHECKING:
    from autotune.assembly import StudyParts


class StudyRun:
    """Runs one study. The caller holds the study's lock.

    All state follows from the records in the store, so that a killed run goes on as if nothing had happened.

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
        self._running: dict[int, Proposal] = {}
        self._number = 0
        self._health = MachineHealth(parts.baseline)
        self._asking = asyncio.Lock()
        self._finished_one = asyncio.Event()
        self._stop_reason = ""
        self._began = time.monotonic()
        self._earlier_s = 0.0

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
            stack.push_async_callback(parts.standby.close)
            benches = [await self._bench(stack, slot) for slot in range(parts.spec.hardware.parallel_trials)]
            await self._search(benches)
            for bench in benches:
                await bench.keeper.release()
            await self._confirm(replace(benches[0], keeper=self._plain_keeper(stack, benches[0])))
        result = self._result()
        self._store.put("recommendation", "final", result.to_json())
        self._observer.notify(StudyFinished(self._stop_reason, result.summary))
        return result

    def _resume(self) -> None:
        """Take up what the store holds. A trial that was killed becomes a fault of ours, and is proposed again."""
        for lost in self._store.interrupted():
            outcome = Broken("interrupted", "the run was ended while this trial ran")
            record = TrialRecord(lost.number, lost.proposal, outcome, lost.started_at, 0.0, attempt=lost.attempt)
            self._store.add(record)
        self._records = sorted(self._store.history(), key=lambda record: record.number)
        self._number = self._store.next_number()
        self._parts.view.sync(self._records)
        self._earlier_s = sum(record.seconds for record in self._records) / self._parts.spec.hardware.parallel_trials

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
            placement=parts.placement,
            folder=parts.folder,
            observer=self._observer,
            environment=parts.environment,
            vocabulary=parts.vocabulary,
            gpus=parts.trial_gpus,
        )

    def _plain_keeper(self, stack: AsyncExitStack, bench: Bench) -> EngineKeeper:
        """Starts engines exactly as a deployment would, without our scheduler class."""
        keeper = EngineKeeper(self._parts.plain_engine, bench.keeper.lease, live=False)
        stack.push_async_callback(keeper.release)
        return keeper

    # -- search ------------------------------------------------------------------------------------------------------

    async def _search(self, benches: Sequence[Bench]) -> None:
        """Let every bench take proposals until the stop rule fires."""
        tasks = [asyncio.create_task(self._work(bench)) for bench in benches]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, bench: Bench) -> None:
        while (proposal := await self._next()) is not None:
            await self._run(bench, proposal)

    async def _next(self) -> Proposal | None:
        """What to run next, or None when the search is over."""
        async with self._asking:
            await self._baseline_known()
            if self._stop_reason:
                return None
            records = tuple(self._records)
            if (baseline := self._parts.rules.baseline_due(records)) is not None:
                self._begin(baseline)
                return baseline
            if (reason := self._parts.rules.stop_reason(records, self._elapsed_s())) is not None:
                self._stop_reason = reason
                return None
            running = tuple(self._running.values())
            proposal = self._health.question() or self._parts.rules.sentinel(records)
            if proposal is None or any(other.origin == "sentinel" for other in running):
                proposal = await asyncio.to_thread(self._parts.proposer.propose, records, running=running)
            if proposal is None and not self._stop_reason:
                self._stop_reason = "every configuration of the space has been tried"
            if proposal is not None:
                self._begin(proposal)
            return proposal

    async def _baseline_known(self) -> None:
        """With several benches, nobody else starts before the baseline has ended: it sets the scale of all outcomes."""
        while any(proposal.origin == "baseline" for proposal in self._running.values()):
            self._finished_one.clear()
            await self._finished_one.wait()

    def _begin(self, proposal: Proposal) -> None:
        self._running[self._number] = proposal
        self._store.begin(self._number, self._attempt(proposal), proposal)
        self._number += 1

    def _attempt(self, proposal: Proposal) -> int:
        broken = [r for r in self._records if r.proposal == proposal or r.config == proposal.config]
        return 1 + sum(isinstance(record.outcome, Broken) for record in broken)

    async def _run(
        self, bench: Bench, proposal: Proposal, *, fresh: bool = False, arrival_seed: int | None = None
    ) -> TrialRecord:
        """Run one trial and keep its record, in our own tables first."""
        number = next(number for number, running in self._running.items() if running is proposal)
        attempt = self._attempt(proposal)
        self._observer.notify(TrialStarted(number, proposal, self._expected_s()))
        try:
            record = await run_trial(bench, proposal, number, attempt=attempt, fresh=fresh, arrival_seed=arrival_seed)
            self._store.add(record)
            self._records.append(record)
        finally:
            del self._running[number]
            self._finished_one.set()
        self._parts.view.sync(self._records)
        self._parts.proposer.told(record)
        self._observer.notify(TrialFinished(record, retried=has_another_attempt(record, self._records)))
        self._check_health(record)
        return record

    def _check_health(self, record: TrialRecord) -> None:
        """Stop the study where going on would only burn GPU time.

        Raises:
            EnvironmentFault: the baseline cannot serve, or the machine is sick.
        """
        outcome = record.outcome
        if record.proposal.origin == "baseline" and isinstance(outcome, Infeasible):
            raise EnvironmentFault(
                f"the baseline cannot serve: {outcome.reason}",
                hint="a study compares with a baseline that works; correct `baseline.args` or `engine.args`",
            )
        sentence = self._health.told(record)
        if sentence is not None:
            hint = f"log: {record.folder}/engine.log; everything finished is kept: repair this and run the study again"
            raise EnvironmentFault(sentence, hint=hint)

    def _expected_s(self) -> float | None:
        times = sorted(record.seconds for record in self._records if isinstance(record.outcome, Measured))
        return times[len(times) // 2] if times else None

    # -- proof -------------------------------------------------------------------------------------------------------

    async def _confirm(self, bench: Bench) -> None:
        """Measure the finalists and the baseline again, interleaved, on fresh and plain starts."""
        rules = self._parts.rules
        runs = rules.confirmation_runs(self._records)
        if rules.next_confirmation(self._records) is not None:
            self._observer.notify(ConfirmationStarted(self._stop_reason, len(runs)))
        while (run := rules.next_confirmation(self._records)) is not None:
            await self._ask_after_the_machine(bench)
            self._begin(run.proposal)
            await self._run(bench, run.proposal, fresh=True, arrival_seed=run.arrival_seed)
        while (proposal := rules.next_undo(self._records)) is not None:
            await self._ask_after_the_machine(bench)
            self._begin(proposal)
            await self._run(bench, proposal, fresh=True)

    async def _ask_after_the_machine(self, bench: Bench) -> None:
        """Measure the baseline where faults in a row could be the machine's, before the proof goes on."""
        while (question := self._health.question()) is not None:
            self._begin(question)
            await self._run(bench, question, fresh=True)

    def _result(self) -> StudyResult:
        rules, records = self._parts.rules, tuple(self._records)
        confirmation = rules.confirmation(records)
        recommendation = rules.recommendation(records, confirmation)
        return StudyResult(
            name=self._parts.spec.name,
            folder=self._parts.folder,
            objectives=self._parts.objectives,
            records=records,
            confirmation=confirmation,
            recommendation=recommendation,
            reason=self._stop_reason,
            summary=rules.summary(records, confirmation, recommendation),
        )

    def _elapsed_s(self) -> float:
        """Seconds of this session and of the trials of earlier ones."""
        return time.monotonic() - self._began + self._earlier_s
