"""Trials on a Ray cluster. See `autotune.executor.Executor`; a lost node costs one trial, which is queued again."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cluster.ray_cluster import NodeLost, NoRoom, RayCluster, RayPlace, Request
from autotune.cluster.values import JOB, NODE_STUDY, REPLY, Document, Job, NodeStudy, unpack
from autotune.engine.protocol import Resolved
from autotune.events import Observer, StageStarted
from autotune.executor import NO_PLACE, NODE_LOST, TrialTask
from autotune.outcome import Broken, Measured, TrialRecord
from autotune.space.headroom import started_with

if TYPE_CHECKING:
    from autotune.assembly import StudyParts

CLOSE_S = 60.0
"""Longest time that the end of an engine on a node is waited for."""
LOOK_S = 2.0
"""Between two looks at the stage of a trial; more with hundreds of places."""
KINDS = ("quality", "load")
"""Documents that nodes need."""


@dataclass(frozen=True, slots=True)
class _Returned:
    """What a start on a node left here, for the memory model to learn from."""

    log: Path | None
    resolved: Resolved


class RayExecutor:
    """See `Executor`.

    Args:
        parts: the study.
        observer: is told of stages.
        cluster: the cluster, connected.
    """

    def __init__(self, parts: StudyParts, observer: Observer, cluster: RayCluster) -> None:
        self._parts, self._observer, self._cluster = parts, observer, cluster
        self._places: list[RayPlace | None] = []

    async def open(self, places: int) -> None:
        """See `Executor.open`. Places are reserved when their first trial is there."""
        for place in self._places[places:]:
            if place is not None:
                await place.close(CLOSE_S)
        self._places = [*self._places[:places], *([None] * (places - len(self._places)))]

    async def room(self) -> None:
        """See `Executor.room`. Every place has its own."""

    async def run(self, place: int, task: TrialTask) -> TrialRecord:
        """See `Executor.run`."""
        refused = self._parts.preflight.refuse(task.proposal.config) if task.proposal.origin != "baseline" else None
        began, started_at = time.monotonic(), time.time()
        outcome: Broken | None = None
        if refused is None:
            try:
                return await self._run(place, task)
            except NodeLost as lost:
                outcome = Broken(NODE_LOST, f"the node of the trial is gone: {lost}")
            except NoRoom as full:
                outcome = Broken(NO_PLACE, str(full))
            except asyncio.CancelledError:
                await asyncio.shield(self._give_up(place))
                raise
            await self._give_up(place)
        return TrialRecord(
            task.number, task.proposal, refused or outcome or Broken(NODE_LOST, ""), started_at,
            time.monotonic() - began, self._parts.trial_gpus, attempt=task.attempt, place=place,
        )  # fmt: skip

    async def rest(self) -> None:
        """See `Executor.rest`."""
        for index, place in enumerate(self._places):
            if place is not None:
                try:
                    await place.call("rest")
                except NodeLost:
                    await self._give_up(index)

    async def close(self) -> None:
        """See `Executor.close`."""
        await asyncio.gather(*(self._give_up(index) for index in range(len(self._places))))
        self._places = []

    async def _give_up(self, index: int) -> None:
        place, self._places[index] = self._places[index], None
        if place is not None:
            await place.close(CLOSE_S)

    async def _run(self, index: int, task: TrialTask) -> TrialRecord:
        place = self._places[index] or await self._reserve(index)
        documents = self._documents(place)
        job = JOB.dump_json(Job(task, documents)).decode()
        looking = asyncio.create_task(self._look(place, task.number))
        try:
            text, files = await place.call("run", job)
        finally:
            looking.cancel()
        return await asyncio.to_thread(self._keep, place, index, task, text, files)

    async def _reserve(self, index: int) -> RayPlace:
        parts = self._parts
        cluster = parts.spec.hardware.cluster
        assert cluster is not None
        wants_gpus = parts.spec.engine.kind in ("vllm", "command") and parts.trial_gpus > 0
        request = Request(cluster.cpus, parts.trial_gpus, cluster.hosts, tuple(sorted(cluster.resources.items())))
        place, hosts = await self._cluster.place(request, cluster.place_timeout, leases_gpus=wants_gpus)
        self._places[index] = place
        study = NodeStudy(
            parts.spec.model_dump_json(), str(parts.study.path.parent.resolve()), parts.baseline, parts.vocabulary,
            parts.trial_gpus, hosts, parts.headroom,
        )  # fmt: skip
        await place.call("begin", NODE_STUDY.dump_json(study).decode())
        return place

    def _documents(self, place: RayPlace) -> tuple[Document, ...]:
        """Documents that the place does not have, the latest of each key."""
        found = [Document(kind, key, body) for kind in KINDS for key, body in self._parts.store.documents(kind)]
        latest = {(one.kind, one.key): one for one in found}.values()
        new = [one for one in latest if (one.kind, one.key, hash(one.body)) not in place.sent]
        place.sent |= {(one.kind, one.key, hash(one.body)) for one in new}
        return tuple(new)

    async def _look(self, place: RayPlace, number: int) -> None:
        """Tell the observer what the trial does."""
        seen: Sequence[object] | None = None
        while True:
            await asyncio.sleep(max(LOOK_S, len(self._places) / 50))
            try:
                stage = await place.call("stage")
            except NodeLost:
                return
            if stage is not None and stage != seen and stage[0] == number:
                seen = stage
                self._observer.notify(StageStarted(*stage))

    def _keep(self, place: RayPlace, index: int, task: TrialTask, text: str, files: bytes) -> TrialRecord:
        """Bring files and documents home, and let the record speak of the folder here."""
        folder = self._parts.folder / f"trial-{task.number:04d}"
        there = REPLY.validate_json(text).folder
        reply = REPLY.validate_json(text.replace(json.dumps(there)[1:-1], json.dumps(str(folder))[1:-1]))
        unpack(files, folder)
        for one in reply.documents:
            self._parts.store.put(one.kind, one.key, one.body)
            place.sent.add((one.kind, one.key, hash(one.body)))
        record = replace(reply.record, place=index, folder=folder if folder.exists() else None)
        log = folder / "engine.log"
        if record.restarted and isinstance(record.outcome, Measured) and record.resolved is not None and log.is_file():
            config = started_with(task.proposal.config, dict(record.resolved.values))
            self._parts.preflight.learn(config, _Returned(log, record.resolved))
        return record
