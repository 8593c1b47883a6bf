"""Where the trials of a study run, and what starts engines at a place."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from autotune.engine.live_scheduler import SharedFileFactory
from autotune.engine.process import STOP_GRACE
from autotune.engine.protocol import Engine
from autotune.engine.registry import create_engine
from autotune.engine.standby import Standby
from autotune.events import Observer
from autotune.executor import Executor
from autotune.spec.study import StudySpec
from autotune.virtualtime import in_virtual_time

if TYPE_CHECKING:
    from autotune.assembly import StudyParts

T = TypeVar("T")

VIRTUAL_TIME = "virtual clock: seconds are those of the simulated card, and pass much faster here"


@dataclass(frozen=True)
class PlaceEngines:
    """What starts engines at one place. Places do not share a waiting interpreter.

    Attributes:
        live: as the search uses it.
        plain: without our scheduler class: what is confirmed is what will be deployed.
        standby: of both.
    """

    live: Engine
    plain: Engine
    standby: Standby

    async def close(self) -> None:
        """End the waiting interpreter."""
        await self.standby.close()


def place_engines(spec: StudySpec, base: Path) -> PlaceEngines:
    """Engines of one place; `base` is the folder that relative names of the study start from."""
    standby = Standby(STOP_GRACE)
    live = create_engine(spec, live=SharedFileFactory(), standby=standby, base=base)
    return PlaceEngines(live, create_engine(spec, standby=standby, base=base), standby)


async def in_its_time(parts: StudyParts, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `work` in the study's time: the host's, or a virtual one, which goes on where the records of it end."""
    if not parts.spec.engine.virtual:
        return await work()
    ends = [record.started_at + record.seconds for record in parts.store.history()]
    return await in_virtual_time(work, max([time.time(), *ends]))


@contextmanager
def executor_of(parts: StudyParts, observer: Observer) -> Iterator[Executor]:
    """Where the trials of a study run; the connection to a cluster ends with the block."""
    from autotune.local import LocalExecutor

    cluster = parts.spec.hardware.cluster
    if cluster is None:
        yield LocalExecutor(parts, observer)
        return
    from autotune.cluster.ray_cluster import RayCluster
    from autotune.cluster.ray_executor import RayExecutor

    connection = RayCluster(cluster.address)
    try:
        yield RayExecutor(parts, observer, connection)
    finally:
        connection.close()
