"""The router of a trial as a process of ours: started, proven, watched, stopped."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from autotune.engine import verdicts
from autotune.engine.client import EngineClient, tokens_in
from autotune.engine.dispatching import Place, RouterSettings
from autotune.engine.failure_values import Failure
from autotune.engine.listeners import LOOPBACK
from autotune.engine.protocol import Lease, RunningEngine
from autotune.engine.recipe import inherited
from autotune.engine.router import SETTINGS_VARIABLE, settings_to_json
from autotune.engine.supervised import Ended, SupervisedJob, launch
from autotune.errors import EnvironmentFault
from autotune.space.topology import Member

READY_SECONDS = 60.0
PROBE_SECONDS = 120.0
GRACE = 5.0
POLL = 0.05


def place_of(member: Member, engine: RunningEngine) -> Place:
    """An engine as the router is told of it."""
    return Place(member.name, member.role, engine.url, engine.api_key)


class RunningRouter:
    """A router that answers. Made by `start_router`."""

    def __init__(self, job: SupervisedJob, client: EngineClient, settings: RouterSettings, log: Path) -> None:
        self._job = job
        self._client = client
        self._settings = settings
        self.log = log

    @property
    def url(self) -> str:
        return self._client.url

    @property
    def api_key(self) -> str:
        return self._settings.api_key

    @property
    def ended(self) -> bool:
        """It is gone, and with it the trial's engine."""
        return self._job.ended

    def failure(self) -> Failure | None:
        """Why it is gone, or None."""
        return verdicts.router_died(self._job.exit_code) if self._job.ended else None

    def processes(self) -> tuple[int, ...]:
        return self._job.processes()

    async def healthy(self) -> bool:
        """The router and all engines."""
        return await self._client.healthy()

    async def reset_caches(self) -> bool:
        """Of all engines."""
        return await self._client.reset_prefix_cache()

    async def prove(self, model: str) -> Failure | None:
        """A short prompt and one that is long enough for a prefill engine get their tokens."""
        lengths = [1]
        if self._settings.of_role(True):
            lengths.append(self._settings.threshold + 16)
        for length in lengths:
            reply = await self._client.probe(model, PROBE_SECONDS, [100 + at % 97 for at in range(length)])
            if reply.status == 400 and length > 1:
                continue  # longer than the model's context: no request of a load comes here
            if reply.status != 200 or tokens_in(reply) == 0:
                return verdicts.not_serving(f"prompt of {length} tokens: HTTP {reply.status}: {reply.text[:300]}")
        return None

    async def stop(self) -> Ended:
        """End it; may be called twice."""
        await self._client.close()
        return await self._job.stop(GRACE)


async def start_router(settings: RouterSettings, lease: Lease, folder: Path) -> RunningRouter:
    """Start a router on the port and the cores of `lease`, and wait until it answers.

    Raises:
        EnvironmentFault: it does not come up, which is no fault of a configuration.
    """
    log, port = folder / "router.log", lease.port
    env = {**inherited(), SETTINGS_VARIABLE: settings_to_json(settings)}
    argv = (sys.executable, "-m", "autotune.engine.router", "--host", LOOPBACK, "--port", str(port))
    job = await launch(argv, env, folder=folder, log=log, grace=GRACE, cpus=lease.cpus)
    router = RunningRouter(job, EngineClient(f"http://{LOOPBACK}:{port}", settings.api_key), settings, log)
    deadline = time.monotonic() + READY_SECONDS
    try:
        while not await router.healthy():
            if job.ended or time.monotonic() > deadline:
                said = log.read_text(errors="replace")[-500:].strip() if log.exists() else ""
                raise EnvironmentFault(f"the router on port {port} did not come up: {said or 'no word from it'}")
            await asyncio.sleep(POLL)
    except BaseException:
        await asyncio.shield(router.stop())
        raise
    return router
