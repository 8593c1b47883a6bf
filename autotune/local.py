"""Trials on this host: a lease on GPUs and a port, cores, a load client and an engine for each place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.engine.keeper import EngineKeeper
from autotune.engine.protocol import Lease
from autotune.events import Observer
from autotune.executor import TrialTask
from autotune.host.cores import CoreShare, divide, node_of, read_cores
from autotune.host.gpus import GpuHost, read_gpus
from autotune.host.leases import Leased, leased
from autotune.host.pool import GpuPool
from autotune.host.topology import tensor_links
from autotune.load.measure import LoadClient
from autotune.outcome import TrialRecord
from autotune.places import place_engines
from autotune.trial import Bench, run_trial

if TYPE_CHECKING:
    from autotune.assembly import StudyParts


@dataclass(frozen=True)
class _Place:
    """One place: its bench, and a second keeper that starts engines as a deployment would."""

    bench: Bench
    plain: EngineKeeper

    async def rest(self) -> None:
        await self.bench.keeper.release()
        await self.plain.release()

    async def move(self, gpus: tuple[int, ...]) -> None:
        for keeper in (self.bench.keeper, self.plain):
            await keeper.move(replace(keeper.lease, gpus=gpus))


class LocalExecutor:
    """See `Executor`.

    Args:
        parts: the study.
        observer: is told of stages.
    """

    def __init__(self, parts: StudyParts, observer: Observer) -> None:
        self._parts = parts
        self._observer = observer
        self._places: list[_Place] = []
        self._pool: GpuPool | None = None
        self._host = GpuHost()
        self._stack = AsyncExitStack()

    async def open(self, places: int) -> None:
        """See `Executor.open`."""
        if len(self._places) == places:
            return
        await self.close()
        try:
            if self._parts.spec.hardware.shared:
                self._pool = await self._shared_gpus()
            each = 0 if self._pool is not None else self._parts.lease_gpus
            leases = [await self._lease(each) for _ in range(places)]
            self._host = await asyncio.to_thread(read_gpus)
            for one, share in zip(leases, self._shares(leases), strict=True):
                self._places.append(await self._place(one, share))
        except BaseException:
            await self.close()
            raise

    async def room(self) -> None:
        """See `Executor.room`."""
        if self._pool is not None:
            await self._pool.room()

    async def run(self, place: int, task: TrialTask) -> TrialRecord:
        """See `Executor.run`."""
        async with self._bench(place, task) as bench:
            record = await run_trial(
                bench,
                task.proposal,
                task.number,
                attempt=task.attempt,
                fresh=task.fresh,
                arrival_seed=task.arrival_seed,
            )
            return replace(record, place=place)

    @asynccontextmanager
    async def _bench(self, place: int, task: TrialTask) -> AsyncIterator[Bench]:
        """The bench of a place; where GPUs are shared, with as many as the trial's layout takes, once they are free."""
        at = self._places[place]
        bench = replace(at.bench, keeper=at.plain) if task.plain else at.bench
        if self._pool is None:
            yield bench
            return
        gpus = await self._pool.take(place, self._parts.gpus_of(task.proposal.config))
        try:
            if self._parts.lease_gpus:
                await at.move(gpus)
            yield replace(bench, gpus=len(gpus), links=tensor_links(self._host.at(gpus)))
        finally:
            self._pool.done(place)

    async def rest(self) -> None:
        """See `Executor.rest`."""
        await asyncio.gather(*(place.rest() for place in self._places))

    async def close(self) -> None:
        """See `Executor.close`."""
        stack, self._stack = self._stack, AsyncExitStack()
        self._places, self._pool = [], None
        await stack.aclose()

    async def _lease(self, count: int) -> Leased:
        spec = self._parts.spec
        return await self._stack.enter_async_context(leased(count, spec.name, devices=spec.hardware.devices))

    async def _shared_gpus(self) -> GpuPool:
        """All GPUs of the study, leased at once."""
        total = self._parts.spec.hardware.gpus or 0
        if not self._parts.lease_gpus:
            return GpuPool(range(total), (), self._end)
        mine = await self._lease(total)
        host = await asyncio.to_thread(read_gpus)
        return GpuPool(mine.gpus, host.at(mine.gpus), self._end)

    async def _end(self, place: int) -> None:
        await self._places[place].rest()

    def _shares(self, leases: list[Leased]) -> tuple[CoreShare, ...]:
        """Cores of each place."""
        spec = self._parts.spec
        if not spec.hardware.pin or len(leases) < 2:
            return tuple(CoreShare() for _ in leases)
        nodes = [node_of(self._host.at(one.gpus)) for one in leases]
        return divide(read_cores(), nodes, spec.load.client_processes)

    async def _place(self, mine: Leased, share: CoreShare) -> _Place:
        parts = self._parts
        virtual = parts.spec.engine.virtual
        client = LoadClient(parts.spec.load.client_processes, cpus=share.client, virtual=virtual)
        await self._stack.enter_async_context(client)
        engine = place_engines(parts.spec, parts.study.path.parent)
        self._stack.push_async_callback(engine.close)
        keeper = EngineKeeper(engine.live, Lease(mine.gpus, mine.port, share.engine), live=parts.spec.engine.live)
        plain = EngineKeeper(engine.plain, Lease(mine.gpus, mine.port), live=False)
        bench = Bench(
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
            headroom=parts.headroom,
            links=tensor_links(self._host.at(mine.gpus)),
        )
        place = _Place(bench, plain)
        self._stack.push_async_callback(place.rest)
        return place
