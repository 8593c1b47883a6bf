"""Faults that a test can order, and the environment of the simulator, read once at the start.

``AUTOTUNE_SIM_FAULT`` holds names separated by commas, some with a value after a colon:

======================  ==============================================================================================
exit_after_ready        the process ends with code 0 one (wall) second after it became healthy
exit_at:PHASE           the engine dies in that phase of the start (init, load, compile, kv_init, capture, warmup)
hang_at:PHASE           the start stops for ever in that phase
ignore_sigterm          SIGTERM is ignored; only SIGKILL ends the process
die_under_load[:N]      the engine dies (exit code 0, EngineDeadError) when N requests run at once (default 4)
die_after[:N]           the engine dies after N finished requests (default 10)
hang_under_load[:N]     the engine stops producing tokens when N requests run at once (default 4)
garbage_metrics         /metrics answers with bytes that are no exposition format
garbage_sse             events carry broken JSON
stop_tokens             every second request ends early although ignore_eos was asked
wrong_usage             usage counts one output token too many
error_rate:P            this share of the requests answers 500
slow_health             /health takes ten (wall) seconds
log_flood               ten thousand lines of 200 bytes at the start
leak_process            a child process that ignores SIGTERM stays behind
======================  ==============================================================================================
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from .tables import names


@dataclass(frozen=True)
class SimulationEnvironment:
    """What the AUTOTUNE_SIM_* variables say."""

    card: str = "h100"
    gpus: int = 1
    speed: float = 1.0
    startup: float = 1.0
    noise: float = 0.01
    seed: int = 0
    faults: Mapping[str, str] = field(default_factory=dict)
    processes: bool = False

    def fault(self, name: str) -> bool:
        """Whether this fault was ordered."""
        return name in self.faults

    def number(self, name: str, default: float) -> float:
        """The value behind a fault's colon."""
        value = self.faults.get(name, "")
        return float(value) if value else default

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> SimulationEnvironment:
        """Read the variables.

        :raises ValueError: a value that is no number, an unknown fault or a non-positive speed.
        """
        faults = {}
        known = names("server", "faults")
        for word in filter(None, environ.get("AUTOTUNE_SIM_FAULT", "").split(",")):
            name, _, value = word.strip().partition(":")
            if name not in known:
                raise ValueError(f"AUTOTUNE_SIM_FAULT: unknown fault {name!r}; known are {', '.join(sorted(known))}")
            faults[name] = value
        speed = float(environ.get("AUTOTUNE_SIM_SPEED") or 1)
        if speed <= 0:
            raise ValueError("AUTOTUNE_SIM_SPEED must be above 0")
        return cls(
            card=(environ.get("AUTOTUNE_SIM_CARD") or "h100").lower(),
            gpus=int(environ.get("AUTOTUNE_SIM_GPUS") or 1),
            speed=speed,
            startup=float(environ.get("AUTOTUNE_SIM_STARTUP") or 1),
            noise=float(environ.get("AUTOTUNE_SIM_NOISE") or 0.01),
            seed=int(environ.get("AUTOTUNE_SIM_SEED") or random.SystemRandom().randrange(2**31)),
            faults=faults,
            processes=environ.get("AUTOTUNE_SIM_PROCS", "") not in ("", "0"),
        )
