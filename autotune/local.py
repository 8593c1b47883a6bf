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
        self._stack = AsyncExitStack()

    async def open(self, places: int) -> None:
        """See `Executor.open`."""
        if len(self._places) == places:
            return
        await self.close()
        try:
            leases = [await self._stack.enter_async_context(self._lease()) for _ in range(places)]
            host = await asyncio.to_thread(read_gpus)
            for one, share in zip(leases, self._shares(leases, host), strict=True):
                self._places.append(await self._place(one, share, host))
        except BaseException:
            await self.close()
            raise

    async def run(self, place: int, task: TrialTask) -> TrialRecord:
        """See `Executor.run`."""
        at = self._places[place]
        bench = replace(at.bench, keeper=at.plain) if task.plain else at.bench
        record = await run_trial(
            bench,
            task.proposal,
            task.number,
            attempt=task.attempt,
            fresh=task.fresh,
            arrival_seed=task.arrival_seed,
        )
        return replace(record, place=place)

    async def rest(self) -> None:
        """See `Executor.rest`."""
        await asyncio.gather(*(place.rest() for place in self._places))

    async def close(self) -> None:
        """See `Executor.close`."""
        stack, self._stack = self._stack, AsyncExitStack()
        self._places = []
        await stack.aclose()

    @asynccontextmanager
    async def _lease(self) -> AsyncIterator[Leased]:
        spec = self._parts.spec
        async with leased(self._parts.lease_gpus, spec.name, devices=spec.hardware.devices) as mine:
            yield mine

    def _shares(self, leases: list[Leased], host: GpuHost) -> tuple[CoreShare, ...]:
        """Cores of each place."""
        spec = self._parts.spec
        if not spec.hardware.pin or len(leases) < 2:
            return tuple(CoreShare() for _ in leases)
        nodes = [node_of(host.at(one.gpus)) for one in leases]
        return divide(read_cores(), nodes, spec.load.client_processes)

    async def _place(self, mine: Leased, share: CoreShare, host: GpuHost) -> _Place:
        parts = self._parts
        client = LoadClient(parts.spec.load.client_processes, cpus=share.client)
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
            links=tensor_links(host.at(mine.gpus)),
        )
        place = _Place(bench, plain)
        self._stack.push_async_callback(place.rest)
        return place
