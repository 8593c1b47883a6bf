"""One study, start to end: propose, measure, keep, stop, confirm. What a trial is stands in `autotune.trial`."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autotune.errors import EnvironmentFault
from autotune.events import (
    ConfirmationStarted,
    NeighboursChecked,
    Observer,
    StudyFinished,
    StudyStarted,
    TrialFinished,
    TrialStarted,
)
from autotune.executor import NO_PLACE, NODE_LOST, Executor, TrialTask
from autotune.outcome import Broken, Infeasible, Measured, Proposal, TrialRecord
from autotune.result import ENDED, FINAL, NO_RECOMMENDATION, StudyResult, busy_seconds
from autotune.search import neighbours
from autotune.search.health import MachineHealth, has_another_attempt
from autotune.store import Store
from autotune.virtualtime import now

if TYPE_CHECKING:
    from autotune.assembly import StudyParts


class StudyRun:
    """Runs one study. The caller holds the study's lock.

    All state follows from the records in the store, so that a killed run goes on as if nothing had happened.

    Args:
        parts: everything the study is made of.
        store: where records go.
        observer: is told what happens.
        executor: where trials run; the caller closes it.
    """

    def __init__(self, parts: StudyParts, store: Store, observer: Observer, executor: Executor) -> None:
        self._parts = parts
        self._store = store
        self._observer = observer
        self._executor = executor
        self._records: list[TrialRecord] = []
        self._running: dict[int, Proposal] = {}
        self._number = 0
        self._health = MachineHealth(parts.baseline)
        self._asking = asyncio.Lock()
        self._finished_one = asyncio.Event()
        self._stop_reason = ""
        self._working = 0
        self._broken = Counter[str]()
        self._times: list[float] = []
        self._began = now()
        self._earlier_s = 0.0

    async def run(self) -> StudyResult:
        """Search until the stop rule fires, confirm, and return the result.

        Raises:
            EnvironmentFault: the machine does not allow to go on; everything finished is kept.
            asyncio.CancelledError: interrupted; the engines are stopped and the study can go on later.
        """
        self._resume()
        parts = self._parts
        limit = parts.spec.search.wall_clock
        self._observer.notify(
            StudyStarted(
                parts.spec.name,
                parts.folder,
                parts.spec.search.trials,
                tuple(self._records),
                simulated=parts.spec.engine.kind == "simulated",
                notes=parts.notes,
                seconds_left=None if limit is None else max(0.0, limit - self._elapsed_s()),
            )
        )
        await self._executor.open(parts.spec.hardware.parallel_trials)
        while parts.rules.baseline_alone and (baseline := parts.rules.baseline_due(self._records)) is not None:
            await self._run(0, self._begin(baseline))
        await self._search(await self._settled_places())
        await self._executor.rest()
        await self._confirm()
        result = self._result()
        self._store.put(*ENDED, self._stop_reason)
        self._store.put(*FINAL, result.to_json())
        self._observer.notify(StudyFinished(self._stop_reason, result.summary))
        return result

    def _resume(self) -> None:
        """Take up what the store holds. A trial that was killed becomes a fault of ours, and is proposed again."""
        for lost in self._store.interrupted():
            outcome = Broken("interrupted", "the run was ended while this trial ran")
            record = TrialRecord(lost.number, lost.proposal, outcome, lost.started_at, 0.0, attempt=lost.attempt)
            self._store.add(record)
        self._records = sorted(self._store.history(), key=lambda record: record.number)
        for record in self._records:
            self._take_in(record)
        self._number = self._store.next_number()
        self._parts.view.sync(self._records)
        self._earlier_s = busy_seconds(self._records)

    # -- neighbours --------------------------------------------------------------------------------------------------

    async def _settled_places(self) -> int:
        """How many trials run at a time: as many as wanted, or fewer where they disturb each other."""
        hardware = self._parts.spec.hardware
        wanted = self._parts.rules.checked_places
        if wanted == 1 or not hardware.neighbour_check or self._parts.rules.stop_reason(self._records, 0.0):
            return hardware.parallel_trials
        for places in neighbours.levels(wanted):
            await self._executor.open(places)
            found = await self._check_neighbours(places)
            sentence = found.sentence if found.verdict == "undisturbed" else f"{found.sentence}; fewer at a time"
            self._observer.notify(NeighboursChecked(places, found.verdict, sentence))
            if found.verdict == "undisturbed":
                settled = hardware.parallel_trials if places == wanted else places
                if settled != places:
                    await self._executor.open(settled)
                return settled
        await self._executor.open(1)
        return 1

    async def _check_neighbours(self, places: int) -> neighbours.Disturbance:
        limit, baseline = self._parts.spec.hardware.neighbour_limit, Proposal(self._parts.baseline)
        engines_up = False
        while True:
            found = neighbours.judge(self._records, self._parts.objectives, places, limit)
            if found.verdict != "open":
                return found
            step = neighbours.next_round(self._records, places)
            if not engines_up:  # not judged: while engines start, loads do not run at the same time
                warm = replace(step.beside(baseline), ticket=-1, note=f"{places} at a time: engines start")
                await self._together(places, warm)
                engines_up = True
            await self._run(step.watched, self._begin(step.alone(baseline)))
            await self._together(places, step.beside(baseline))

    async def _together(self, places: int, proposal: Proposal) -> None:
        """Run a proposal at all places at the same time."""
        tasks = [self._begin(proposal) for _ in range(places)]
        await _beside(self._run(place, task) for place, task in enumerate(tasks))

    # -- search ------------------------------------------------------------------------------------------------------

    async def _search(self, places: int) -> None:
        """Let every place take proposals until the stop rule fires."""
        self._working = places
        await _beside(self._work(place) for place in range(places))

    async def _work(self, place: int) -> None:
        while (task := await self._next(place)) is not None:
            record = await self._run(place, task)
            if isinstance(record.outcome, Broken) and record.outcome.cause == NO_PLACE:
                self._working -= 1
                if self._working == 0:
                    hint = "everything finished is kept: add nodes or ask for less (hardware.cluster), then run again"
                    raise EnvironmentFault(f"no place is left: {record.outcome.reason}", hint=hint)
                return

    async def _next(self, place: int) -> TrialTask | None:
        """What to run next, or None when the search is over."""
        async with self._asking:
            while not self._stop_reason:
                await self._executor.room()
                records, running = tuple(self._records), tuple(self._running.values())
                if (reason := self._parts.rules.stop_reason(records, self._elapsed_s())) is not None:
                    self._stop_reason = reason
                    break
                proposal = None
                if not self._parts.rules.spoken_for(records, running):
                    proposal = await self._propose(records, running, place)
                if proposal is not None:
                    return self._begin(proposal)
                if not self._running:
                    self._stop_reason = "every configuration of the space has been tried"
                    break
                # What runs may break and be due again, or teach the search something that it can go on with.
                self._finished_one.clear()
                await self._finished_one.wait()
        return None

    async def _propose(
        self, records: Sequence[TrialRecord], running: Sequence[Proposal], place: int
    ) -> Proposal | None:
        proposal = self._health.question() or self._parts.rules.sentinel(records)
        if proposal is not None and not any(other.origin == "sentinel" for other in running):
            return proposal
        due = self._parts.rules.baseline_due(records)
        if due is not None and not any(other.config == due.config for other in running):
            return due
        found = await asyncio.to_thread(self._parts.proposer.propose, records, running=running, place=place)
        # What is known to be good needs no baseline to be chosen; a search without one would be blind.
        return found if due is None or (found is not None and found.origin == "expert") else None

    def _begin(self, proposal: Proposal, *, proof: bool = False, arrival_seed: int | None = None) -> TrialTask:
        """Note that a trial is about to run. `proof`: alone, afresh, and started as a deployment would."""
        if self._store.get(*FINAL) not in (None, NO_RECOMMENDATION):
            self._store.put(*FINAL, NO_RECOMMENDATION)  # of an earlier end: the study goes on
        number, attempt = self._number, self._attempt(proposal)
        self._running[number] = proposal
        self._number += 1
        self._store.begin(number, attempt, proposal)
        return TrialTask(number, proposal, attempt, fresh=proof, plain=proof, arrival_seed=arrival_seed)

    def _attempt(self, proposal: Proposal) -> int:
        return 1 + self._broken[proposal.config.hash]

    async def _run(self, place: int, task: TrialTask) -> TrialRecord:
        """Run one trial and keep its record, in our own tables first."""
        self._observer.notify(TrialStarted(task.number, task.proposal, self._expected_s()))
        try:
            record = await self._executor.run(place, task)
            self._store.add(record)
            # By number, as a resumed run reads them: what is proposed must not depend on whether we were killed.
            insort(self._records, record, key=lambda one: one.number)
            self._take_in(record)
        finally:
            del self._running[task.number]
            self._finished_one.set()
        self._parts.view.sync((record,))
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
        if isinstance(outcome, Broken) and outcome.cause in (NODE_LOST, NO_PLACE):
            return
        if isinstance(outcome, Broken) and outcome.cause == neighbours.INVALID and record.proposal.origin == "beside":
            return  # the check of neighbours judges that
        sentence = self._health.told(record)
        if sentence is not None:
            hint = f"log: {record.folder}/engine.log; everything finished is kept: repair this and run the study again"
            raise EnvironmentFault(sentence, hint=hint)

    def _expected_s(self) -> float | None:
        return self._times[len(self._times) // 2] if self._times else None

    def _take_in(self, record: TrialRecord) -> None:
        """Sums over all records that every trial asks for."""
        if isinstance(record.outcome, Broken):
            self._broken[record.config.hash] += 1
        elif isinstance(record.outcome, Measured):
            insort(self._times, record.seconds)

    # -- proof -------------------------------------------------------------------------------------------------------

    async def _confirm(self) -> None:
        """Measure the finalists and the baseline again, interleaved, on fresh and plain starts, one at a time."""
        rules = self._parts.rules
        runs = rules.confirmation_runs(self._records)
        if rules.next_confirmation(self._records) is not None:
            self._observer.notify(ConfirmationStarted(self._stop_reason, len(runs)))
        while (run := rules.next_confirmation(self._records)) is not None:
            await self._ask_after_the_machine()
            await self._run(0, self._begin(run.proposal, proof=True, arrival_seed=run.arrival_seed))
        while (proposal := rules.next_undo(self._records)) is not None:
            await self._ask_after_the_machine()
            await self._run(0, self._begin(proposal, proof=True))

    async def _ask_after_the_machine(self) -> None:
        """Measure the baseline where faults in a row could be the machine's, before the proof goes on."""
        while (question := self._health.question()) is not None:
            await self._run(0, self._begin(question, proof=True))

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
        return now() - self._began + self._earlier_s


async def _beside(work: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Run all at the same time; the first fault cancels the others, waits for them and is raised as it is."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
