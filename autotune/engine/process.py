"""`ProcessEngine`: an engine that is a process of ours, whatever the recipe says that it runs."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from autotune.engine import verdicts
from autotune.engine.client import EngineClient
from autotune.engine.enginelog import LogFollower
from autotune.engine.failures import FailureContext
from autotune.engine.gpumemory import GpuWatch, gpu_watch
from autotune.engine.listeners import LOOPBACK, PortHold
from autotune.engine.live import LiveFactory, LiveLimits, LiveStart
from autotune.engine.protocol import EngineContext, Lease, RunningEngine, StartFailure
from autotune.engine.readiness import Limits, Readiness
from autotune.engine.recipe import Identity, Recipe
from autotune.engine.running import RunningProcess
from autotune.engine.supervised import SupervisedJob, launch
from autotune.space.config import EngineConfig, FrozenValue

STOP_GRACE = 15.0
"""Seconds that an engine gets between SIGTERM and SIGKILL."""


@dataclass(frozen=True)
class ProcessEngine:
    """Starts one kind of engine as a supervised process.

    Attributes:
        recipe: what is run.
        context: the study's fixed part.
        limits: deadlines of a start.
        live: makes the live limits of a start; None where only `recipe.live_route` or nothing can.
        live_names: settings that may change on the running engine.
    """

    recipe: Recipe
    context: EngineContext
    limits: Limits
    live: LiveFactory | None = None
    live_names: frozenset[str] = frozenset()

    @property
    def live_settings(self) -> frozenset[str]:
        return self.live_names

    async def start(
        self,
        config: EngineConfig,
        lease: Lease,
        *,
        folder: Path,
        on_phase: Callable[[str], None] | None = None,
    ) -> RunningEngine | StartFailure:
        """See `Engine.start`."""
        began = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / "engine.log"
        log.write_bytes(b"")
        try:
            hold = PortHold(lease.port)
        except OSError as error:
            return StartFailure(verdicts.port_taken(lease.port, str(error)), (), time.monotonic() - began, log)
        limits = self.live.prepare(folder) if self.live is not None else None
        try:
            return await self._start(config, lease, hold, limits, log, on_phase)
        finally:
            hold.release()

    async def _start(
        self,
        config: EngineConfig,
        lease: Lease,
        hold: PortHold,
        limits: LiveLimits | None,
        log: Path,
        on_phase: Callable[[str], None] | None,
    ) -> RunningEngine | StartFailure:
        began = time.monotonic()
        identity = Identity(hold.port, f"t-{secrets.token_hex(6)}", secrets.token_urlsafe(24), lease.gpus)
        command = self.recipe.command(config, identity, limits.start if limits is not None else LiveStart())
        memory = gpu_watch(lease.gpus)
        job = await launch(command.argv, command.env, folder=log.parent, log=log, grace=STOP_GRACE)
        client = EngineClient(f"http://{LOOPBACK}:{identity.port}", identity.api_key)
        follower = LogFollower(log, on_phase, failure_context(config, memory))
        try:
            ready = Readiness(job, client, follower, identity, self.limits, began)
            failure = await ready.wait()
        except BaseException:
            await _abandon(job, client, memory, limits)
            raise
        if failure is not None:
            phases = follower.phases()
            await _abandon(job, client, memory, limits)
            return StartFailure(failure, phases, time.monotonic() - began, log)
        running = RunningProcess(job, client, follower, identity, memory, limits, self.recipe, STOP_GRACE)
        await running.learn(config, ready.info)
        return running


def failure_context(config: EngineConfig, memory: GpuWatch) -> FailureContext:
    """What the classifier cannot read in the log."""
    requested: dict[str, FrozenValue] = dict(config.args)
    requested |= {f"env.{name}": value for name, value in config.env}
    return FailureContext(idle_free_gib=memory.idle_free_gib, requested=requested)


async def _abandon(job: SupervisedJob, client: EngineClient, memory: GpuWatch, limits: LiveLimits | None) -> None:
    """End a start that did not come up; nothing of it may be left when this returns, also when we are cancelled."""

    async def end() -> None:
        await client.close()
        pids = job.processes()
        await job.stop(STOP_GRACE)
        await memory.wait_free(pids)
        if limits is not None:
            limits.close()

    task = asyncio.ensure_future(end())
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.shield(task)
        return
    await task
    raise asyncio.CancelledError
