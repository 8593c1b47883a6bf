"""How two kinds of engine are started: by a command of the user's, and the simulator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field

from autotune.spec import checks
from autotune.spec.checks import Problem
from autotune.spec.part import Part
from autotune.spec.units import Share

if TYPE_CHECKING:
    from autotune.spec.study import StudySpec


class CommandSpec(Part):
    """Templates for an engine started by a command of yours: docker, podman, ssh, srun, kubectl."""

    start: list[str]
    """Command as a list. `{args}` becomes vLLM's arguments; `{port}`, `{name}`, `{model}`, `{api_key}` one each."""
    stop: list[str] | None = None
    """Command that stops it. Default: SIGTERM to the process group of `start`."""
    logs: list[str] | None = None
    """Command that follows its log. Default: the output of `start`."""
    url: str = "http://127.0.0.1:{port}"
    """Where it answers. On another host its GPUs are there: they are counted, but not looked for or leased here."""

    @property
    def elsewhere(self) -> bool:
        """Whether the engine answers on another host than this one."""
        return urlsplit(self.url).hostname not in ("127.0.0.1", "localhost", "::1")

    def problems(self) -> Iterable[Problem]:
        return checks.command_problems(self.start)


class SimulatedSpec(Part):
    """The simulator's card."""

    card: Literal["h100", "h200", "a100", "l4"] = "h100"
    """Which card is simulated."""
    clock: Literal["wall", "virtual"] = "wall"
    """`wall`: processes in real time. `virtual`: time jumps, and the same seed is the same study (docs/concepts.md)."""
    speed: Annotated[float, Field(gt=0)] = 20.0
    """How much faster than real time; measured times are scaled back. A virtual clock needs none."""
    noise: Annotated[Share, Field(le=0.5)] = 0.01
    """Relative standard deviation of a step's time."""
    startup: Annotated[float, Field(ge=0, le=10)] = 1.0
    """Scale of the simulated start-up time: 0.1 starts in a tenth of what the card would take."""
    fault: str | None = None
    """A fault to play, for tests."""

    @property
    def virtual(self) -> bool:
        """Whether time is virtual; every second that such a study tells of is the simulated card's."""
        return self.clock == "virtual"

    @property
    def pace(self) -> float:
        """Simulated seconds in one second of the clock that is measured with."""
        return 1.0 if self.virtual else self.speed

    @property
    def faults(self) -> frozenset[str]:
        """The names in `fault`, which is a list of `NAME` or `NAME:NUMBER`."""
        return frozenset(word.strip().partition(":")[0] for word in (self.fault or "").split(","))


def virtual_problems(study: StudySpec) -> Iterable[Problem]:
    """What a study with a virtual clock cannot have: whatever runs in a process of its own has another clock."""
    if not study.engine.virtual:
        return
    simulate, hint = study.engine.simulate, "set `engine.simulate.clock: wall` or remove it"
    assert simulate is not None
    wanted = (
        (("topology", "kind"), study.topology.split, "starts a router"),
        (("hardware", "cluster"), study.hardware.cluster is not None, "starts trials on other hosts"),
        (("quality", "command"), study.quality.command is not None, "starts a command"),
        (("quality", "tasks"), not all(task.endswith(".jsonl") for task in study.quality.tasks), "starts lm-eval"),
        (("quality", "reference"), "://" in (study.quality.reference or ""), "asks a server"),
        (("engine", "simulate", "fault"), "leak_process" in simulate.faults, "starts a process"),
    )
    for path, given, what in wanted:
        if given:
            yield Problem(path, f"{what}, which would not see the virtual clock of `engine.simulate`", hint)
