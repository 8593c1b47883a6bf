"""The `hardware` part of a study file: GPUs, trials at the same time, and the cluster that they run on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from autotune.spec import checks
from autotune.spec.checks import Problem
from autotune.spec.part import Part
from autotune.spec.units import Bytes, Seconds, Share


class ClusterSpec(Part):
    """Run the trials on the nodes of a cluster (extra `ray`); this process keeps the study. See docs/cluster.md."""

    kind: Literal["ray"] = "ray"
    """Ray is the only kind."""
    address: Annotated[str, Field(min_length=1)] = "auto"
    """`auto` finds the cluster of this host, else `host:port` of its head."""
    cpus: Annotated[float, Field(ge=0)] = 1.0
    """Processors that are reserved for a trial on each of its hosts."""
    hosts: Annotated[int, Field(ge=1)] = 1
    """Hosts of one trial; its GPUs are spread over them. The engine itself must know how (`engine.kind: command`)."""
    resources: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Further resources of Ray that a trial needs, such as `accelerator_type:H100: 0.001`."""
    place_timeout: Annotated[Seconds, Field(gt=0)] = 600.0
    """Longest time to wait for a node that is free for a trial, the start of new nodes included."""


class HardwareSpec(Part):
    """What a trial may use."""

    gpus: Annotated[int, Field(ge=0)] | None = None
    """Number of GPUs of all trials that run at the same time. Default: all that NVML shows; 0 for the CPU engine."""
    devices: list[int] | None = None
    """NVML indices of the GPUs to use. Default: any free ones."""
    card: str | None = None
    """Name of the card, for a plan on a machine without it (`h100`, `h200`, ...)."""
    gpu_memory: Bytes | None = None
    """Memory per GPU, for a plan on a machine without it."""
    parallel_trials: Annotated[int, Field(ge=1)] = 1
    """Trials measured at the same time, on disjoint GPUs."""
    trial_gpus: Annotated[int, Field(ge=1)] | None = None
    """Most GPUs of one trial. Default: `gpus` divided by `parallel_trials`. With more, trials share `gpus`: each
    holds, and is charged for, what its layout takes, and waits until so many are free."""
    pin: bool = True
    """Give each of several trials its own cores, near its GPUs."""
    neighbour_check: bool = True
    """Measure the baseline alone and beside others before several trials run at a time; fewer where that differs."""
    neighbour_limit: Annotated[Share, Field(gt=0, lt=1)] = 0.05
    """Largest loss beside others, in any objective, that is no disturbance."""
    cluster: ClusterSpec | None = None
    """Run the trials on a cluster. Default: on this host."""

    @property
    def most_gpus(self) -> int | None:
        """Most GPUs of one trial; None where the study does not say."""
        return self.gpus_of_trial(self.gpus) if self.gpus is not None else None

    @property
    def shared(self) -> bool:
        """Whether trials take their GPUs from one pool, because not all of them could have their most at once."""
        return self.trial_gpus is not None and self.trial_gpus * self.parallel_trials > (self.gpus or 0)

    def gpus_of_trial(self, count: int) -> int:
        """Most GPUs of one trial where the study has `count` in all."""
        return self.trial_gpus if self.trial_gpus is not None else count // self.parallel_trials

    def at_once(self, size: int) -> int:
        """Trials of `size` GPUs that run at the same time."""
        if not self.shared:
            return self.parallel_trials
        return min(self.parallel_trials, max((self.gpus or 0) // max(size, 1), 1))

    def problems(self) -> Iterable[Problem]:
        yield from checks.hardware_problems(self)
        if self.cluster is not None and self.devices is not None:
            yield Problem(("devices",), "names GPUs of this host, but the trials run on a cluster", "remove it")
        if self.cluster is not None and self.gpus is None:
            yield Problem(("gpus",), "is missing", "on a cluster say how many GPUs all trials have together (0: none)")
        if self.cluster is not None and self.shared:
            yield Problem(
                ("trial_gpus",),
                f"is {self.trial_gpus}: {self.parallel_trials} such trials want more than the {self.gpus} GPUs, "
                "and on a cluster each place has its own",
                f"at most {(self.gpus or 0) // self.parallel_trials}, or fewer `parallel_trials`",
            )
        if self.cluster is not None and (self.most_gpus or 0) % self.cluster.hosts:
            yield Problem(
                ("cluster", "hosts"),
                f"is {self.cluster.hosts}, and the {self.most_gpus} GPUs of a trial cannot be spread over them evenly",
                "make them divisible",
            )
