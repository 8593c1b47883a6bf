"""One engine core without a clock: the two-deep pipeline of steps that vLLM's core loop runs.

Whoever drives it (virtual time in ``core.py``, the wall clock in ``driver.py``) calls ``start`` when the GPU is free
and ``finish`` when the step it returned has ended.
"""

from __future__ import annotations

import math
import random

from .config import EngineSettings
from .memory import MemoryPlan, check_step
from .roofline import Roofline
from .scheduler import Batch, Request, Scheduler

_DRIFT_S = 15.0  # correlation time of a card's slow changes (clock, temperature, neighbours)


class StepNoise:
    """Factors on step times: independent jitter, and a slow drift of the same sigma that a short measurement sees as
    one value. Without the drift, noise would average out over a thousand steps and two runs would always agree;
    repeats on a real, unchanged engine differ by 0.5 to 1.5 % in throughput."""

    def __init__(self, sigma: float, seed: int) -> None:
        self._sigma = sigma
        self._random = random.Random(seed)
        self._drift = self._random.gauss(0.0, sigma)
        self._last_s = 0.0

    def factor(self, now: float) -> float:
        """The factor for a step that starts at ``now``, in simulated seconds."""
        if not self._sigma:
            return 1.0
        keep = math.exp(-max(0.0, now - self._last_s) / _DRIFT_S)
        self._last_s = now
        self._drift = keep * self._drift + math.sqrt(1 - keep * keep) * self._random.gauss(0.0, self._sigma)
        return math.exp(self._drift + self._random.gauss(0.0, self._sigma))


class EngineCore:
    """Scheduler, roofline and the noise of step times."""

    def __init__(self, settings: EngineSettings, memory: MemoryPlan, noise: float = 0.0, seed: int = 0) -> None:
        self.settings = settings
        self.memory = memory
        self.scheduler = Scheduler(settings, memory.blocks, seed)
        self._roofline = Roofline(settings)
        self._noise = StepNoise(noise, seed)
        self._ahead: Batch | None = None
        self.running_step: Batch | None = None

    def start(self, now: float) -> float | None:
        """Start the next step at ``now``; returns when it will end, or None when there is nothing to do.

        :raises EngineFailure: the step does not fit into the card's memory; the engine is dead then.
        """
        batch = self._ahead or self.scheduler.schedule(now)
        self._ahead = None
        if batch is None:
            return None
        check_step(self.settings, self.memory, batch.tokens, batch.samples, batch.prompt_logits)
        self.running_step = batch
        seconds = self._roofline.step(batch).total_s * self._noise.factor(now)
        if self.settings.async_scheduling:
            self._ahead = self.scheduler.schedule(now)
        return now + seconds

    def finish(self, now: float) -> list[tuple[Request, int]]:
        """End the running step: requests with the number of tokens each has got."""
        batch, self.running_step = self.running_step, None
        return self.scheduler.complete(batch, now) if batch else []
