"""The node's end: one place with its engine and load client, in a process that knows nothing of the study's store."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.cluster.values import JOB, NODE_STUDY, REPLY, Document, Host, Reply, pack
from autotune.engine.keeper import EngineKeeper
from autotune.engine.protocol import Lease, RunningEngine
from autotune.events import Event, StageStarted
from autotune.host.fingerprint import fingerprint
from autotune.host.gpus import read_gpus
from autotune.host.leases import leased
from autotune.host.topology import tensor_links
from autotune.load.measure import LoadClient
from autotune.outcome import Infeasible
from autotune.places import place_engines
from autotune.quality.gate import gate_for
from autotune.space.config import EngineConfig
from autotune.spec.study import LoadSpec, StudySpec
from autotune.trial import Bench, run_trial

NODES_VARIABLE = "AUTOTUNE_NODES"
"""For an engine that spans hosts: addresses of all hosts of the trial, its own first, separated by commas."""
GPUS_VARIABLE = "AUTOTUNE_NODE_GPUS"
"""The GPUs of the trial on each of these hosts: indices separated by commas, hosts by semicolons."""


@dataclass
class _Memory:
    """Documents of the study, as far as they were sent; what is added here goes back with the reply."""

    known: dict[tuple[str, str], str] = field(default_factory=dict)
    added: list[Document] = field(default_factory=list)

    def learn(self, documents: Sequence[Document]) -> None:
        self.known |= {(one.kind, one.key): one.body for one in documents}

    def add(self, kind: str, key: str, body: str) -> None:
        self.known[kind, key] = body
        self.added.append(Document(kind, key, body))

    def take_added(self) -> tuple[Document, ...]:
        added, self.added = tuple(self.added), []
        return added


@dataclass(frozen=True)
class _Documents:
    """See `autotune.quality.gate.GateStore`."""

    memory: _Memory
    kind: str

    def get(self, key: str) -> str | None:
        return self.memory.known.get((self.kind, key))

    def put(self, key: str, body: str) -> None:
        self.memory.add(self.kind, key, body)


@dataclass(frozen=True)
class _Placement:
    """See `autotune.trial.Placement`."""

    memory: _Memory

    def get(self) -> LoadSpec | None:
        body = self.memory.known.get(("load", "placed"))
        return LoadSpec.model_validate_json(body) if body is not None else None

    def put(self, load: LoadSpec) -> None:
        self.memory.add("load", "placed", load.model_dump_json())


class _Judged:
    """A preflight for a node: the driver has judged what arrives here, and learns from the log that goes back."""

    def refuse(self, config: EngineConfig) -> Infeasible | None:
        return None

    def learn(self, config: EngineConfig, engine: RunningEngine) -> None:
        return None


class _Latest:
    """Keeps the latest stage of the running trial, for the driver to ask."""

    def __init__(self) -> None:
        self.stage: tuple[int, str, str] | None = None

    def notify(self, event: Event) -> None:
        if isinstance(event, StageStarted):
            self.stage = (event.number, event.stage, event.detail)


class NodeRunner:
    """Runs trials of one study, one after the other.

    Args:
        study: a `NodeStudy` as JSON.
        devices: NVML indices of the GPUs that are ours here; None where the engine takes none.
    """

    def __init__(self, study: str, devices: Sequence[int] | None = None) -> None:
        self._study = NODE_STUDY.validate_json(study)
        self._spec = StudySpec.model_validate_json(self._study.spec)
        self._devices = devices
        self._memory = _Memory()
        self._latest = _Latest()
        self._stack = AsyncExitStack()
        self._bench: Bench | None = None
        self._plain: EngineKeeper | None = None
        self._running: asyncio.Task[Reply] | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="autotune-node-"))

    @property
    def stage(self) -> tuple[int, str, str] | None:
        """Number of the running trial, its stage and what is said about it."""
        return self._latest.stage

    async def run(self, job: str) -> tuple[str, bytes]:
        """Run a `Job` given as JSON.

        Returns:
            A `Reply` as JSON, and the trial's files (see `pack`).

        Raises:
            EnvironmentFault: this node cannot run the study.
        """
        self._running = asyncio.ensure_future(self._run(job))
        reply = await self._running
        files = await asyncio.to_thread(pack, Path(reply.folder))
        shutil.rmtree(reply.folder, ignore_errors=True)
        return REPLY.dump_json(reply).decode(), files

    async def _run(self, job: str) -> Reply:
        given = JOB.validate_json(job)
        self._memory.learn(given.documents)
        bench = self._bench or await self._open()
        if given.task.plain and self._plain is not None:
            await bench.keeper.release()
            bench = replace(bench, keeper=self._plain)
        task = given.task
        record = await run_trial(
            bench, task.proposal, task.number, attempt=task.attempt, fresh=task.fresh, arrival_seed=task.arrival_seed
        )
        record = replace(record, node=socket.gethostname())
        return Reply(record, str(self._folder / f"trial-{task.number:04d}"), self._memory.take_added())

    async def rest(self) -> None:
        """End the engines."""
        for keeper in (self._bench.keeper if self._bench else None, self._plain):
            if keeper is not None:
                await keeper.release()

    async def close(self) -> None:
        """Cancel what runs, end everything and remove what was written."""
        if self._running is not None and not self._running.done():
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        await self._stack.aclose()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _open(self) -> Bench:
        spec, base = self._spec, Path(self._study.base)
        os.environ.update(host_variables(self._study.hosts))
        host = await asyncio.to_thread(read_gpus)
        count = len(self._devices) if self._devices is not None else 0
        mine = await self._stack.enter_async_context(leased(count, spec.name, devices=self._devices))
        client = await self._stack.enter_async_context(LoadClient(spec.load.client_processes))
        engines = place_engines(spec, base)
        self._stack.push_async_callback(engines.close)
        lease = Lease(mine.gpus, mine.port)
        keeper = EngineKeeper(engines.live, lease, live=spec.engine.live)
        self._plain = EngineKeeper(engines.plain, lease, live=False)
        self._stack.push_async_callback(self.rest)
        self._bench = Bench(
            spec=spec,
            keeper=keeper,
            client=client,
            preflight=_Judged(),
            gate=gate_for(spec, _Documents(self._memory, "quality"), self._study.baseline, beside=base),
            placement=_Placement(self._memory),
            folder=self._folder,
            observer=self._latest,
            environment=fingerprint(model=spec.model, revision=spec.revision, host=host),
            vocabulary=self._study.vocabulary,
            gpus=self._study.gpus,
            headroom=self._study.headroom,
            links=tensor_links(host.at(mine.gpus)),
        )
        return self._bench


def host_variables(hosts: Sequence[Host]) -> dict[str, str]:
    """What tells an engine which hosts and GPUs it has; nothing where it has one host."""
    if len(hosts) < 2:
        return {}
    gpus = ";".join(",".join(map(str, host.gpus)) for host in hosts)
    return {NODES_VARIABLE: ",".join(host.address for host in hosts), GPUS_VARIABLE: gpus}
