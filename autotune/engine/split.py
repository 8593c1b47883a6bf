"""Several engines behind a router that are one engine to the trial: they start together, and none outlives another."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.engine import verdicts
from autotune.engine.cpushare import binding
from autotune.engine.dispatching import RouterSettings
from autotune.engine.listeners import PortHold
from autotune.engine.process import ProcessEngine
from autotune.engine.protocol import Lease, OnPhase, RunningEngine, StartFailure
from autotune.engine.routing import RunningRouter, place_of, start_router
from autotune.engine.running_split import RunningSplit, Started, in_trial_words, show_log
from autotune.host.leases import LeaseBook
from autotune.space.config import EngineConfig
from autotune.space.topology import Member, SplitPlan, split_plan
from autotune.spec.topology import TopologySpec

BINDING = "VLLM_CPU_OMP_THREADS_BIND"
SIDE_CHANNEL = ("VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT")


@dataclass(frozen=True)
class SplitEngine:
    """Starts the engines of a trial and a router before them.

    Attributes:
        engine: starts one of them; plain, without a standby and without live limits.
        topology: the study's.
        slots: GPUs of a trial where the lease names none (simulated ones), or engines on the CPU.
        study: its name, for the leases of ports.
        on_cpu: engines share this machine's cores.
        book: leases of ports; default: the host's.
    """

    engine: ProcessEngine
    topology: TopologySpec
    slots: int
    study: str
    on_cpu: bool = False
    book: LeaseBook | None = None

    @property
    def live_settings(self) -> frozenset[str]:
        """None: every change starts all engines anew."""
        return frozenset()

    def plan(self, config: EngineConfig, lease: Lease) -> SplitPlan:
        """The engines of a trial."""
        slots = len(lease.gpus) or self.slots
        return split_plan(config, slots, transfer=self.topology.transfer, on_cpu=self.on_cpu)

    async def start(
        self, config: EngineConfig, lease: Lease, *, folder: Path, on_phase: OnPhase | None = None
    ) -> RunningEngine | StartFailure:
        """See `Engine.start`."""
        began = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        plan = self.plan(config, lease)
        if plan.problem:
            return StartFailure(verdicts.no_such_split(plan.problem), (), time.monotonic() - began, None)
        try:
            hold = PortHold(lease.port)
        except OSError as error:
            return StartFailure(verdicts.port_taken(lease.port, str(error)), (), time.monotonic() - began, None)
        book = self.book or LeaseBook()
        ports: list[int] = []
        try:
            starts = await asyncio.to_thread(self._starts, plan, lease, book, ports)
            front = replace(lease, port=hold.port)
            found = await self._start_all(config, plan, starts, front, folder, on_phase)
        except BaseException:
            await asyncio.to_thread(_give_back, book, ports)
            raise
        finally:
            hold.release()
        if isinstance(found, StartFailure):
            if found.log is not None and found.log.parent != folder:
                show_log(found.log)
            await asyncio.to_thread(_give_back, book, ports)
            return replace(found, seconds=time.monotonic() - began)
        members, router = found
        hands_on = self.topology.transfer == "nixl"
        return RunningSplit(config, members, router, lambda: _give_back(book, ports), hands_on=hands_on)

    def _starts(
        self, plan: SplitPlan, lease: Lease, book: LeaseBook, ports: list[int]
    ) -> list[tuple[Member, EngineConfig, Lease]]:
        """What each engine is started with: its GPUs in the order of the lease, a port, its cores."""
        gpus = list(lease.gpus)
        usable = lease.cpus or sorted(os.sched_getaffinity(0))
        cores = binding(usable, len(plan.members)) if self.on_cpu else None
        found = []
        for index, member in enumerate(plan.members):
            ports.append(book.take_port(self.study))
            mine, gpus = (tuple(gpus[: member.gpus]), gpus[member.gpus :]) if gpus else ((), [])
            own = replace(lease, gpus=mine, port=ports[-1])
            variables: dict[str, str] = {}
            if cores is not None and not self._says(BINDING, member.config):
                variables[BINDING] = cores[index]
            if self.topology.transfer == "nixl" and member.role != "replica":
                ports.append(book.take_port(self.study))
                variables |= dict(zip(SIDE_CHANNEL, ("127.0.0.1", str(ports[-1])), strict=True))
            found.append((member, member.config.merged({}, variables), own))
        return found

    def _says(self, variable: str, config: EngineConfig) -> bool:
        """Whether the study sets a variable, or our own environment does."""
        return variable in dict(config.env) or variable in dict(self.engine.context.args.env) or variable in os.environ

    async def _start_all(
        self,
        config: EngineConfig,
        plan: SplitPlan,
        starts: Sequence[tuple[Member, EngineConfig, Lease]],
        front: Lease,
        folder: Path,
        on_phase: OnPhase | None,
    ) -> tuple[tuple[Started, ...], RunningRouter] | StartFailure:
        """All engines at once, then the router; the first failure ends all others."""
        engine = replace(self.engine, served_model=f"t-{secrets.token_hex(6)}", standby=None, live=None)
        tasks = {
            asyncio.create_task(
                engine.start(own, lease, folder=folder / member.name, on_phase=_named(member.name, on_phase))
            ): member
            for member, own, lease in starts
        }
        router: RunningRouter | None = None
        try:
            failed = await _first_failure(tasks)
            if failed is not None:
                member, failure = failed
                return in_trial_words(failure, member, config)
            members = tuple(Started(member, _running(task)) for task, member in tasks.items())
            if on_phase is not None:
                on_phase("router")
            settings = RouterSettings(
                tuple(place_of(item.member, item.engine) for item in members),
                plan.threshold,
                self.topology.transfer == "nixl" and plan.members[0].role == "prefill",
                self.topology.characters_per_token,
                secrets.token_urlsafe(24),
            )
            router = await start_router(settings, front, folder)
            problem = await router.prove(engine.served_model)
            if problem is not None:
                return StartFailure(problem, (), 0.0, router.log)
            kept, router_kept = members, router
            tasks, router = {}, None
            return kept, router_kept
        finally:
            await asyncio.shield(_end(tasks, router))


async def _first_failure(
    tasks: Mapping[asyncio.Task[RunningEngine | StartFailure], Member],
) -> tuple[Member, StartFailure] | None:
    """Wait for all starts, or for the first that fails."""
    waiting = set(tasks)
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            result = task.result()
            if isinstance(result, StartFailure):
                return tasks[task], result
    return None


async def _end(
    tasks: Mapping[asyncio.Task[RunningEngine | StartFailure], Member], router: RunningRouter | None
) -> None:
    """End what was started and is not handed over."""
    if router is not None:
        await router.stop()
    for task in tasks:
        task.cancel()  # a start that is cancelled leaves nothing
    results = await asyncio.gather(*tasks, return_exceptions=True)
    running = [result for result in results if not isinstance(result, StartFailure | BaseException)]
    await asyncio.gather(*(engine.stop() for engine in running))


def _running(task: asyncio.Task[RunningEngine | StartFailure]) -> RunningEngine:
    result = task.result()
    assert not isinstance(result, StartFailure)
    return result


def _named(name: str, on_phase: OnPhase | None) -> OnPhase | None:
    return None if on_phase is None else lambda phase: on_phase(f"{name}: {phase}")


def _give_back(book: LeaseBook, ports: Sequence[int]) -> None:
    with contextlib.suppress(OSError):
        book.give_back([f"port-{port}" for port in ports])
