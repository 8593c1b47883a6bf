"""Sees an engine that hangs: requests run, and not one token comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from autotune.engine import verdicts
from autotune.engine.failure_values import Failure
from autotune.engine.protocol import RunningEngine
from autotune.virtualtime import now

RUNNING = "vllm:num_requests_running"
GENERATED = "vllm:generation_tokens_total"
PROMPTS = "vllm:prompt_tokens_total"


@dataclass(frozen=True, slots=True)
class ClientSide:
    """What the load's client knows. An engine that hangs in its very first step still tells that nothing runs.

    Attributes:
        inflight: requests that were sent and have not ended.
        marks: anything that changes as soon as a token comes or a request ends.
    """

    inflight: int = 0
    marks: tuple[object, ...] = ()


@dataclass
class Watchdog:
    """Decides from samples of /metrics and from what the client knows.

    A server whose /metrics does not answer while it has work counts as hanging, unless its tokens reach the client.

    Attributes:
        timeout: seconds without progress that are a hang.
        clock: monotonic seconds; injected in tests.
    """

    timeout: float
    clock: Callable[[], float] = now
    _progress: tuple[object, ...] = ()
    _since: float | None = None
    _running: float = field(default=0.0)
    _tokens: tuple[float, float] = (0.0, 0.0)

    def observe(self, samples: dict[str, float], client: ClientSide = ClientSide()) -> Failure | None:
        """Take in one sample; the failure once the engine hangs."""
        now = self.clock()
        if samples:
            self._running = samples.get(RUNNING, 0.0)
            self._tokens = (samples.get(GENERATED, 0.0), samples.get(PROMPTS, 0.0))
        running = max(self._running, client.inflight)
        # Whether there is work is part of it: the first request after an idle hour is no hang.
        progress = (*self._tokens, running > 0, client.marks)
        if progress != self._progress or running <= 0:
            self._progress, self._since = progress, now
        if self._since is None:
            self._since = now
        silent = now - self._since
        return verdicts.hang(silent, running) if silent >= self.timeout else None


async def wait_for_hang(
    engine: RunningEngine, timeout: float, *, every: float = 1.0, client: Callable[[], ClientSide] = ClientSide
) -> Failure:
    """Return when `engine` hangs or dies; meant to run beside a load and to be cancelled with it.

    Args:
        engine: what is watched.
        timeout: seconds without a token that are a hang, in wall time.
        every: seconds between two looks.
        client: what the load's client knows at the moment.
    """
    dog = Watchdog(timeout)
    while True:
        failure = engine.failure() or dog.observe(await engine.metrics(), client())
        if failure is not None:
            return failure
        await asyncio.sleep(every)
