"""The few things that we ask of Ray: a placement group and an actor for each place. Nothing else imports it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.cluster.node import NodeRunner
from autotune.cluster.values import Host
from autotune.errors import EnvironmentFault

NAMESPACE = "autotune"
QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}


class NodeLost(Exception):
    """The node of a trial is gone, or the process that ran it there."""


class NoRoom(Exception):
    """No node became free for a place in time."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a place reserves.

    Attributes:
        cpus: of a trial, on each of its hosts.
        gpus: of a trial, over all of its hosts.
        hosts: how many.
        resources: further ones of Ray, on each host.
    """

    cpus: float
    gpus: int
    hosts: int = 1
    resources: tuple[tuple[str, float], ...] = ()

    @property
    def bundles(self) -> list[dict[str, float]]:
        """One bundle a host."""
        one = {"CPU": self.cpus, "GPU": self.gpus / self.hosts, **dict(self.resources)}
        return [{name: amount for name, amount in one.items() if amount > 0} for _ in range(self.hosts)]

    def __str__(self) -> str:
        """Such as `CPU 8, GPU 1`, for people."""
        wanted = ", ".join(f"{name} {amount:g}" for name, amount in self.bundles[0].items())
        return f"{wanted} on each of {self.hosts} nodes" if self.hosts > 1 else f"{wanted} on one node"


class _RemoteRunner:
    """The actor: a `NodeRunner` behind Ray's calls. Its methods run beside each other on one event loop."""

    def __init__(self, wants_gpus: bool) -> None:
        self._wants_gpus = wants_gpus
        self._runner: NodeRunner | None = None

    async def host(self) -> tuple[str, tuple[int, ...]]:
        """Address of the node, and the GPUs of it that are ours."""
        import ray

        return str(ray.util.get_node_ip_address()), tuple(int(one) for one in ray.get_gpu_ids())

    async def begin(self, study: str) -> None:
        self._runner = NodeRunner(study, (await self.host())[1] if self._wants_gpus else None)

    async def run(self, job: str) -> tuple[str, bytes]:
        assert self._runner is not None
        return await self._runner.run(job)

    async def stage(self) -> tuple[int, str, str] | None:
        return self._runner.stage if self._runner is not None else None

    async def rest(self) -> None:
        if self._runner is not None:
            await self._runner.rest()

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.close()

    async def wait(self) -> None:
        """Ends with the host: how the loss of a host without an engine of ours is noticed."""
        await asyncio.Event().wait()


class RayPlace:
    """One place on the cluster: its placement group, the actor that runs trials, and one that watches further hosts."""

    def __init__(self, group: Any, actor: Any, watchers: Sequence[Any]) -> None:
        self._group, self._actor, self._watchers = group, actor, tuple(watchers)
        self._waits = [watcher.wait.remote() for watcher in watchers]
        self.sent: set[tuple[str, str, int]] = set()
        """Documents that it has: kind, key and hash of the body."""

    async def call(self, method: str, *arguments: str) -> Any:
        """Call the actor and wait, or hear that a host is gone.

        Raises:
            NodeLost: the actor or one of its hosts has died.
            EnvironmentFault: the node cannot run the study.
        """
        import ray

        reference = getattr(self._actor, method).remote(*arguments)
        tasks = [asyncio.ensure_future(_value(one)) for one in (reference, *self._waits)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            done = next(task for task in tasks if task.done())
            return done.result()
        except ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, EnvironmentFault) else None
            raise cause or EnvironmentFault(f"a node of the cluster: {error.cause!r}"[:600]) from None
        except ray.exceptions.RayError as error:
            raise NodeLost(str(error).strip().splitlines()[0][:200]) from None
        finally:
            for task in tasks:
                task.cancel()

    async def close(self, seconds: float) -> None:
        """End what runs there, then give the reservation back.

        Further hosts may be gone already; the engine on the trial's own is ended all the same, and before its actor:
        with an actor Ray kills the processes that it started, the one that would end the engine among them.
        """
        import ray

        with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
            async with asyncio.timeout(seconds):
                await _value(self._actor.close.remote())
        await asyncio.to_thread(self._remove, ray)

    def _remove(self, ray: Any) -> None:
        with contextlib.suppress(Exception):  # whatever is gone already is gone
            for actor in (self._actor, *self._watchers):
                ray.kill(actor)
            ray.util.remove_placement_group(self._group)


class RayCluster:
    """A connection to a running cluster; it is never started or stopped by us.

    Raises:
        EnvironmentFault: Ray is not installed, or no cluster answers.
    """

    def __init__(self, address: str, *, variables: Mapping[str, str] | None = None) -> None:
        os.environ.update(QUIET)
        try:
            import ray
        except ImportError:
            raise EnvironmentFault(
                "`hardware.cluster` needs Ray", hint="pip install 'vllm-autotune[ray]', here and on every node"
            ) from None
        self._ours = not ray.is_initialized()
        if self._ours:
            try:
                ray.init(
                    address=address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False,
                    runtime_env={"env_vars": dict(variables or {})},
                )  # fmt: skip
            except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
                sentence = str(error).strip().splitlines()[0][:200]
                raise EnvironmentFault(
                    f"no Ray cluster answers at {address}: {sentence}",
                    hint="start one with `ray start --head` (docs/cluster.md), or correct `hardware.cluster.address`",
                ) from None

    async def place(self, request: Request, seconds: float, *, leases_gpus: bool) -> tuple[RayPlace, tuple[Host, ...]]:
        """Reserve a place and start its actor.

        Returns:
            The place, and its hosts, the trial's own first.

        Raises:
            NoRoom: nothing became free in time.
            NodeLost: a host went away meanwhile.
        """
        import ray

        strategy = "STRICT_SPREAD" if request.hosts > 1 else "STRICT_PACK"
        group = ray.util.placement_group(request.bundles, strategy=strategy)
        try:
            async with asyncio.timeout(seconds):
                await _value(group.ready())
                actors = [self._actor(ray, group, index, request, leases_gpus) for index in range(request.hosts)]
                place = RayPlace(group, actors[0], actors[1:])
                hosts = [Host(*await _value(actor.host.remote())) for actor in actors]
            return place, tuple(hosts)
        except TimeoutError:
            ray.util.remove_placement_group(group)
            raise NoRoom(f"not free within {seconds:g} s: {request} (`ray status` shows what there is)") from None
        except ray.exceptions.RayError as error:
            ray.util.remove_placement_group(group)
            raise NodeLost(str(error).strip().splitlines()[0][:200]) from None
        except BaseException:
            ray.util.remove_placement_group(group)
            raise

    def _actor(self, ray: Any, group: Any, index: int, request: Request, leases_gpus: bool) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
        made = ray.remote(_RemoteRunner).options(
            num_cpus=request.cpus, num_gpus=request.gpus / request.hosts, max_restarts=0, max_concurrency=8,
            scheduling_strategy=strategy,
        )  # fmt: skip
        return made.remote(leases_gpus)

    def close(self) -> None:
        """Leave the cluster."""
        import ray

        if self._ours:
            ray.shutdown()


async def _value(reference: Any) -> Any:
    """An object reference awaited; a cancelled wait leaves the call alone."""
    return await asyncio.wrap_future(reference.future())
