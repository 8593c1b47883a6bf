"""From a started process to an engine that is proven to be ours and to serve."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.engine import verdicts
from autotune.engine.client import EngineClient, Json, model_ids, tokens_in
from autotune.engine.enginelog import LogFollower
from autotune.engine.failure_values import Failure
from autotune.engine.hostevidence import HostWatch
from autotune.engine.listeners import listening_inodes, listens_only, socket_inodes
from autotune.engine.recipe import Identity
from autotune.engine.stages import Stage
from autotune.engine.supervised import Job
from autotune.spec.study import StudySpec
from autotune.virtualtime import now

POLL = 0.1
PORT_LOOK = 1.0
"""Seconds between looks at who listens on the port."""
INFO_SECONDS = 15.0
"""What /server_info may take; it asks the host for its drivers and packages."""
QUIET_SECONDS: Mapping[Stage, float] = {
    Stage.CLI: 180.0,
    Stage.IMPORT: 180.0,
    Stage.INSPECT: 240.0,
    Stage.CONFIG: 240.0,
    Stage.ENGINE_IMPORT: 300.0,
    Stage.INIT: 300.0,
    Stage.WEIGHTS: 900.0,
    Stage.PROFILING: 600.0,
    Stage.COMPILE: 900.0,
    Stage.KV_CACHE: 300.0,
    Stage.GRAPHS: 600.0,
    Stage.WARMUP: 600.0,
    Stage.SERVER: 120.0,
    Stage.SERVING: 60.0,
}
"""Longest silence of the log in each stage, in seconds; a stage that talks may take as long as the whole start may."""


@dataclass(frozen=True)
class Limits:
    """Deadlines of a start, in seconds.

    Attributes:
        ready: from the start to the first token.
        probe: for the probe request; the first one of an engine may compile.
        quiet: longest silence by stage.
        ownership: whether this host's /proc can prove who listens.
        keyed: whether the server must refuse requests without the key.
        poll: between two looks.
    """

    ready: float = 900.0
    probe: float = 120.0
    quiet: Mapping[Stage, float] = field(default_factory=lambda: QUIET_SECONDS)
    ownership: bool = True
    keyed: bool = True
    poll: float = POLL


def limits_of(spec: StudySpec) -> Limits:
    """The deadlines of a study: its own where it sets them."""
    own = {Stage(name): seconds for name, seconds in spec.engine.phase_timeouts.items()}
    return Limits(ready=spec.engine.ready_timeout, quiet={**QUIET_SECONDS, **own})


class Readiness:
    """Waits for one start.

    Args:
        job: the process.
        client: talks to it.
        follower: reads its log.
        identity: how it is recognised.
        limits: deadlines.
        began: monotonic time of the start.
        host: knows what the host did meanwhile; None where nobody looked.
    """

    def __init__(
        self,
        job: Job,
        client: EngineClient,
        follower: LogFollower,
        identity: Identity,
        limits: Limits,
        began: float,
        host: HostWatch | None = None,
    ) -> None:
        self._job = job
        self._client = client
        self._follower = follower
        self._identity = identity
        self._limits = limits
        self._began = began
        self._deadline = began + limits.ready
        self._host = host
        self.info: Json = {}
        self._looked_at_port = began

    @property
    def seconds(self) -> float:
        """Since the start."""
        return now() - self._began

    async def wait(self) -> Failure | None:
        """None when the engine serves, else why it does not."""
        failure = await self._wait()
        if failure is None or self._host is None:
            return failure
        return self._host.weigh(failure, self._job.exit_code, self._job.known_processes)

    async def _wait(self) -> Failure | None:
        if self._job.refused is not None:
            return verdicts.cannot_execute(self._job.refused)
        while not await self._client.healthy():
            if (failure := await self._look()) is not None:
                return failure
            await asyncio.sleep(self._limits.poll)
        if (failure := await self._look()) is not None:
            return failure
        return await self._prove() or await self._probe()

    async def _look(self) -> Failure | None:
        """What log, process and clock say."""
        await self._follower.catch_up()
        if self._job.ended:
            return await self.why_dead()
        if (verdict := self._follower.verdict) is not None:
            return verdict
        moment, stage = now(), self._follower.stage
        if moment - self._looked_at_port > PORT_LOOK:
            self._looked_at_port = moment
            if self._stolen():
                return verdicts.port_taken(self._identity.port, "another process listens on it now")
        if moment > self._deadline:
            return self._follower.classify(verdicts.ready_timeout(stage, self._limits.ready))
        quiet = self._limits.quiet.get(stage)
        if quiet is not None and moment - self._follower.last_growth > quiet:
            return self._follower.classify(verdicts.phase_timeout(stage, quiet))
        return None

    def _stolen(self) -> bool:
        """Somebody listens on our port, and it is nobody of ours."""
        if not self._limits.ownership:
            return False
        listening = listening_inodes(self._identity.port)
        return bool(listening) and not listening & socket_inodes(self._job.processes())

    async def why_dead(self) -> Failure:
        """The reason of an ended process."""
        stage = self._follower.stage
        self._follower.drain()
        return self._follower.classify(verdicts.died(stage, self._job.exit_code), exit_code=self._job.exit_code)

    async def _prove(self) -> Failure | None:
        """The listener is a process of ours, it knows this trial's name, and it wants this trial's key."""
        port = self._identity.port
        pids = self._job.processes()
        if self._limits.ownership and listening_inodes(port) and not listens_only(port, pids):
            return verdicts.not_ours(port, "a process outside this trial's process group listens there")
        with_key = await self._client.models()
        if with_key.status in (401, 403):
            return verdicts.not_ours(port, "it refuses this trial's key")
        if self._identity.served_model not in model_ids(with_key):
            return verdicts.not_ours(port, "it does not serve this trial's model name")
        if self._limits.keyed and (await self._client.models(with_key=False)).status not in (401, 403):
            return verdicts.not_ours(port, "it answers without this trial's key")
        return None

    async def _probe(self) -> Failure | None:
        """A request must return tokens, while the process lives.

        The server's information takes seconds to gather, as does the first request; so both are asked for at once.
        """
        request = asyncio.ensure_future(self._client.probe(self._identity.served_model, self._limits.probe))
        information = asyncio.ensure_future(self._client.server_info(INFO_SECONDS))
        try:
            while not request.done():
                await asyncio.wait({request}, timeout=self._limits.poll)
                if (failure := await self._look()) is not None:
                    return failure
            self.info = await information
        finally:
            request.cancel()
            information.cancel()
        reply = request.result()
        if reply.status == 200 and tokens_in(reply) > 0:
            return None
        # A dying engine answers with an error first and writes the reason a moment later.
        for _ in range(30):
            if (failure := await self._look()) is not None:
                return failure
            await asyncio.sleep(self._limits.poll)
        return self._follower.classify(verdicts.not_serving(f"HTTP {reply.status}: {reply.text[:300]}"))
