"""`ProcessEngine`: an engine that is a process of ours, whatever the recipe says that it runs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.engine import verdicts
from autotune.engine.client import EngineClient
from autotune.engine.enginelog import LogFollower
from autotune.engine.failure_values import Cause
from autotune.engine.failures import FailureContext
from autotune.engine.gpumemory import GpuWatch, gpu_watch
from autotune.engine.hostevidence import HostWatch, KernelLog, Kmsg
from autotune.engine.listeners import LOOPBACK, PortHold
from autotune.engine.live import LiveFactory, LiveLimits, LiveStart
from autotune.engine.protocol import EngineContext, Lease, OnPhase, RunningEngine, StartFailure
from autotune.engine.readiness import Limits, Readiness
from autotune.engine.recipe import Command, Identity, Recipe, VllmRecipe
from autotune.engine.running import RunningProcess, learn
from autotune.engine.standby import Standby
from autotune.engine.supervised import Job, launch
from autotune.space.config import EngineConfig, FrozenValue
from autotune.virtualtime import now

STOP_GRACE = 15.0
"""Seconds that an engine gets between SIGTERM and SIGKILL."""
READY_TIMEOUT = "VLLM_ENGINE_READY_TIMEOUT_S"
"""Seconds that vLLM itself waits for its engine core; a start that ends right then had no other reason."""


@functools.cache
def run_key() -> str:
    """The key of all engines that this process starts; their served names are what tells them apart.

    A key for each start would make vLLM up to 0.31 compile everything at each start: VLLM_API_KEY is part of the name
    of its compile cache (`envs.compile_factors`).
    """
    return secrets.token_urlsafe(24)


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
    standby: Standby | None = None
    """Keeps an interpreter ready for the next start; None for plain starts only."""
    url: str = f"http://{LOOPBACK}:{{port}}"
    """Where the engine answers; `{port}` is the leased one."""
    served_model: str = ""
    """A name that the engine cannot choose freely; empty gives each start a fresh one."""
    launcher: Callable[[Command, Path], Job] | None = None
    """Starts the command otherwise than as a process of this host; what it says goes to the file."""
    kernel: KernelLog = field(default_factory=Kmsg)
    """Is looked at before a configuration is blamed for a failure."""

    @property
    def live_settings(self) -> frozenset[str]:
        return self.live_names

    async def start(
        self, config: EngineConfig, lease: Lease, *, folder: Path, on_phase: OnPhase | None = None
    ) -> RunningEngine | StartFailure:
        """See `Engine.start`."""
        began = now()
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / "engine.log"
        log.write_bytes(b"")
        try:
            hold = PortHold(lease.port)
        except OSError as error:
            return StartFailure(verdicts.port_taken(lease.port, str(error)), (), now() - began, log)
        try:
            started = await self._start(config, lease, hold, log, on_phase)
            if isinstance(started, StartFailure) and self._could_be_the_standby(started):
                log.rename(log.with_name("engine-fast.log"))
                log.write_bytes(b"")
                started = await self._start(config, lease, hold, log, on_phase)
            return started
        finally:
            hold.release()

    def _could_be_the_standby(self, failed: StartFailure) -> bool:
        """A fast start that fails for no reason of the configuration's is tried once more as a plain one."""
        if self.standby is None or not self.standby.used or failed.failure.cause is Cause.CONFIG:
            return False
        self.standby.give_up()
        return True

    async def _start(
        self,
        config: EngineConfig,
        lease: Lease,
        hold: PortHold,
        log: Path,
        on_phase: OnPhase | None,
    ) -> RunningEngine | StartFailure:
        began = now()
        limits = self.live.prepare(log.parent) if self.live is not None else None
        # A launcher's engine cannot be an older one that answers in its place, and is the same when it is repeated.
        name = self.served_model or (f"t-{secrets.token_hex(6)}" if self.launcher is None else log.parent.name)
        identity = Identity(hold.port, name, run_key(), lease.gpus)
        command = self._recipe().command(config, identity, limits.start if limits is not None else LiveStart())
        command = replace(command, cpus=lease.cpus)
        memory = gpu_watch(lease.gpus)
        host = HostWatch(memory, self.kernel)
        client = EngineClient(self.url.replace("{port}", str(identity.port)), identity.api_key)
        follower = LogFollower(log, on_phase, failure_context(config, memory, command.env))
        job = await self._launch(command, log)
        try:
            ready = Readiness(job, client, follower, identity, self.limits, began, host)
            failure = await ready.wait()
            if failure is None:
                resolved = await learn(follower, client, config, ready.info)
        except BaseException:
            await _abandon(job, client, memory, limits)
            raise
        if failure is not None:
            phases = follower.phases()
            await _abandon(job, client, memory, limits)
            return StartFailure(failure, phases, now() - began, log)
        return RunningProcess(job, client, follower, identity, memory, limits, self.recipe, STOP_GRACE, resolved, host)

    async def prepare(self, config: EngineConfig, lease: Lease, folder: Path) -> None:
        """Let the standby import for a start of `config` that is still to come."""
        if self.standby is not None:
            identity = Identity(lease.port, "", "", lease.gpus)
            command = replace(self._recipe().command(config, identity, LiveStart()), cpus=lease.cpus)
            await self.standby.prepare(command, folder)

    def _recipe(self) -> Recipe:
        """Once fast starts were given up, nothing of them stays."""
        if isinstance(self.recipe, VllmRecipe) and self.standby is not None and not self.standby.usable:
            return replace(self.recipe, fast=False)
        return self.recipe

    async def _launch(self, command: Command, log: Path) -> Job:
        """The waiting interpreter where there is one, else a new process; the next one imports meanwhile."""
        if self.launcher is not None:
            return self.launcher(command, log)
        job: Job | None = None
        if self.standby is not None:
            job = await self.standby.take(command, folder=log.parent, log=log)
        if job is None:
            job = await launch(
                command.argv, command.env, folder=log.parent, log=log, grace=STOP_GRACE, cpus=command.cpus
            )
        if self.standby is not None:
            try:
                await self.standby.prepare(command, log.parent.parent)
            except BaseException:
                await asyncio.shield(job.stop(STOP_GRACE))
                raise
        return job


def failure_context(config: EngineConfig, memory: GpuWatch, env: Mapping[str, str]) -> FailureContext:
    """What the classifier cannot read in the log; `env` is the engine's environment."""
    requested: dict[str, FrozenValue] = dict(config.args)
    requested |= {f"env.{name}": value for name, value in config.env}
    context = FailureContext(idle_free_gib=memory.idle_free_gib, requested=requested)
    limit = env.get(READY_TIMEOUT, "")
    return replace(context, ready_timeout_s=float(limit)) if limit.isdecimal() else context


async def _abandon(job: Job, client: EngineClient, memory: GpuWatch, limits: LiveLimits | None) -> None:
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
