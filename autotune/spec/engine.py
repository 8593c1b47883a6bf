"""How two kinds of engine are started: by a command of the user's, and the simulator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field

from autotune.spec import checks
from autotune.spec.checks import Problem
from autotune.spec.part import Part
from autotune.spec.units import Share


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
    speed: Annotated[float, Field(gt=0)] = 20.0
    """How much faster than real time; measured times are scaled back."""
    noise: Annotated[Share, Field(le=0.5)] = 0.01
    """Relative standard deviation of a step's time."""
    startup: Annotated[float, Field(ge=0, le=10)] = 1.0
    """Scale of the simulated start-up time: 0.1 starts in a tenth of what the card would take."""
    fault: str | None = None
    """A fault to play, for tests."""
