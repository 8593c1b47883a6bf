"""`RunningProcess`: an engine process that serves, until it is stopped or dies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from autotune.engine import verdicts
from autotune.engine.client import EngineClient, Json
from autotune.engine.enginelog import LogFollower
from autotune.engine.failure_values import Failure
from autotune.engine.gpumemory import GpuWatch
from autotune.engine.hostevidence import HostWatch
from autotune.engine.listeners import PortHold
from autotune.engine.live import LiveLimits
from autotune.engine.protocol import Phase, Resolved, StopReport
from autotune.engine.recipe import Identity, Recipe
from autotune.engine.resolved import resolve
from autotune.engine.stopping import StopOnce
from autotune.engine.supervised import Job
from autotune.host.processes import command_line, process_name, start_ticks
from autotune.space.config import EngineConfig, FrozenValue
from autotune.virtualtime import now

WATCH = 0.2
"""Seconds between looks at log and process while the engine serves."""
LAST_WORDS = 0.4
"""Seconds that a server with a dead engine gets to write why before it is called dead (death is known within 1 s)."""
PORT_DEADLINE = 10.0
VITAL = ("EngineCor", "VLLM::Worker")
"""Titles of engine cores and workers (the kernel cuts names after 15 characters)."""


class RunningProcess:
    """See `RunningEngine`. A task reads the log and notices the end; `failure` only hands out what it found."""

    def __init__(
        self,
        job: Job,
        client: EngineClient,
        follower: LogFollower,
        identity: Identity,
        memory: GpuWatch,
        limits: LiveLimits | None,
        recipe: Recipe,
        stop_grace: float,
        resolved: Resolved,
        host: HostWatch,
    ) -> None:
        self._job = job
        self._client = client
        self._follower = follower
        self._identity = identity
        self._memory = memory
        self._limits = limits
        self._recipe = recipe
        self._grace = stop_grace
        self._phases = follower.phases()
        self._resolved = resolved
        self._host = host
        self._failure: Failure | None = None
        self._stopping = False
        self._end = StopOnce(self._stop)
        self._vital = vital_processes(job.processes())
        self._task = asyncio.create_task(self._watch())

    @property
    def url(self) -> str:
        return self._client.url

    @property
    def api_key(self) -> str:
        return self._identity.api_key

    @property
    def served_model(self) -> str:
        return self._identity.served_model

    @property
    def time_scale(self) -> float:
        return self._recipe.time_scale

    @property
    def resolved(self) -> Resolved:
        return self._resolved

    @property
    def phases(self) -> tuple[Phase, ...]:
        return self._phases

    @property
    def log(self) -> Path | None:
        return self._follower.path

    def failure(self) -> Failure | None:
        """See `RunningEngine.failure`."""
        if self._failure is None and self._job.ended and not self._stopping:
            self._failure = self._explain()
        return self._failure

    def processes(self) -> tuple[int, ...]:
        return self._job.processes()

    async def metrics(self) -> dict[str, float]:
        return await self._client.metrics()

    async def reset_caches(self) -> bool:
        return await self._client.reset_prefix_cache()

    async def reconfigure(self, live: Mapping[str, FrozenValue]) -> bool:
        """See `RunningEngine.reconfigure`."""
        if self.failure() is not None:
            return False
        if self._limits is not None:
            return self._limits.write(live)
        if not self._recipe.live_route:
            return False
        reply = await self._client.post(self._recipe.live_route, dict(live))
        return reply.status == 200

    async def stop(self) -> StopReport:
        """See `RunningEngine.stop`."""
        return await self._end()

    async def _stop(self) -> StopReport:
        began = now()
        self.failure()
        self._stopping = True
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._client.close()
        pids = self._job.processes()
        ended = await self._job.stop(self._grace)
        leftovers = [*ended.leftovers, *await self._memory.wait_free(pids), *await _port_free(self._identity.port)]
        if self._limits is not None:
            self._limits.close()
        return StopReport(now() - began, ended.killed, tuple(leftovers))

    async def _watch(self) -> None:
        dead_since: float | None = None
        while self._failure is None:
            await self._follower.catch_up()
            if dead_since is None and (self._follower.dead_line or not all_alive(self._vital)):
                dead_since = now()
            late = dead_since is not None and now() - dead_since > LAST_WORDS
            if self._job.ended or late:
                self._failure = self._explain()
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WATCH):
                    await self._job.wait_over()

    def _explain(self) -> Failure:
        """Why it died. The exit code proves nothing: vLLM ends with 0 after the death of its engine core."""
        code = self._job.exit_code
        failure = self._follower.classify(verdicts.died(self._follower.stage, code), exit_code=code)
        return self._host.weigh(failure, code, self._job.known_processes)


def vital_processes(pids: Iterable[int]) -> dict[int, int]:
    """Start times of the engine cores and workers among `pids`: none of them may end before the engine does."""
    found = {}
    for pid in pids:
        title = command_line(pid) + process_name(pid)
        ticks = start_ticks(pid)
        if ticks is not None and any(word in title for word in VITAL):
            found[pid] = ticks
    return found


def all_alive(processes: Mapping[int, int]) -> bool:
    """Whether exactly these processes still run."""
    return all(start_ticks(pid) == ticks for pid, ticks in processes.items())


async def learn(follower: LogFollower, client: EngineClient, config: EngineConfig, info: Json) -> Resolved:
    """Compare what the engine says that it runs with (`info` is its /server_info) with `config`."""
    version = await client.version()
    await follower.catch_up()
    return resolve(config, follower.log, info, version)


async def _port_free(port: int) -> tuple[str, ...]:
    """Wait until the port can be bound again."""
    end = now() + PORT_DEADLINE
    while True:
        try:
            PortHold(port).release()
        except OSError as error:
            if now() > end:
                return (f"port {port}: {error}",)
            await asyncio.sleep(0.1)
        else:
            return ()
