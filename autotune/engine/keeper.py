"""Keeps one engine running and restarts it only where a configuration needs a new process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autotune.engine.protocol import Engine, Lease, OnPhase, RunningEngine, StartFailure, StopReport
from autotune.space.config import EngineConfig, FrozenValue
from autotune.space.defaults import live_defaults, lowers


@dataclass(frozen=True, slots=True)
class Obtained:
    """A running engine for a configuration, and whether it took a new process."""

    engine: RunningEngine
    restarted: bool


class EngineKeeper:
    """Owns the engine of one lease.

    `obtain` changes the running engine where only live settings differ and none exceeds what the engine was started
    with; otherwise it stops the engine, waits until nothing is left of it, and starts a new one, with room for live
    changes to come where it is given any.

    Args:
        engine: starts engines.
        lease: what they may use.
        live: whether live changes are wanted at all.
    """

    def __init__(self, engine: Engine, lease: Lease, *, live: bool = True) -> None:
        self._engine = engine
        self.lease = lease
        self._live = engine.live_settings if live else frozenset[str]()
        self._running: RunningEngine | None = None
        self._started_with: EngineConfig | None = None
        self._ceiling: dict[str, FrozenValue] = {}

    @property
    def running(self) -> RunningEngine | None:
        return self._running

    @property
    def live_settings(self) -> frozenset[str]:
        """Names that this keeper can change without a restart."""
        return self._live

    def can_serve(self, config: EngineConfig) -> bool:
        """Whether the running engine can take `config` without a new process.

        A setting that the engine was not started with has the limit that the engine says it chose. One that `config`
        leaves out must have been left out at the start: only then is the engine's choice what `config` asks for.
        """
        if self._running is None or self._started_with is None or self._running.failure() is not None:
            return False
        started, given = self._started_with.split(self._live)
        wanted, settings = config.split(self._live)
        if started != wanted or not given.keys() <= settings.keys():
            return False
        return all(
            name in self._ceiling and lowers(name, value, self._ceiling[name]) for name, value in settings.items()
        )

    async def obtain(
        self,
        config: EngineConfig,
        *,
        folder: Path,
        fresh: bool = False,
        room: EngineConfig | None = None,
        on_phase: OnPhase | None = None,
    ) -> Obtained | StartFailure:
        """An engine that runs `config`.

        Args:
            config: what it must run.
            folder: of the trial.
            fresh: insist on a new process, started with exactly `config`.
            room: the same with higher limits. An engine that has to be started is started with them and then lowered;
                one that cannot be is started with `config`.
            on_phase: is told how the start goes on.
        """
        running = self._running if not fresh and self.can_serve(config) else None
        live = config.split(self._live)[1]
        if running is not None and (not live or await running.reconfigure(live)):
            return Obtained(running, restarted=False)
        await self.release()
        if room is not None and not fresh and room != config and self._becomes(room, config):
            started = await self._start(room, folder, on_phase)
            if not isinstance(started, StartFailure) and await started.reconfigure(live):
                return Obtained(started, restarted=True)
            await self.release()
        started = await self._start(config, folder, on_phase)
        return started if isinstance(started, StartFailure) else Obtained(started, restarted=True)

    def _becomes(self, started: EngineConfig, wanted: EngineConfig) -> bool:
        """Whether an engine that is started with one can be lowered to the other."""
        (process, limits), (same, settings) = started.split(self._live), wanted.split(self._live)
        return process == same and limits.keys() == settings.keys()

    async def _start(
        self, config: EngineConfig, folder: Path, on_phase: OnPhase | None
    ) -> RunningEngine | StartFailure:
        started = await self._engine.start(config, self.lease, folder=folder, on_phase=on_phase)
        if isinstance(started, StartFailure):
            return started
        self._running, self._started_with = started, config
        resolved = {name: value for name, value in started.resolved.values if name in self._live}
        self._ceiling = {**live_defaults(self._live), **resolved, **config.split(self._live)[1]}
        return started

    async def move(self, lease: Lease) -> None:
        """Use other GPUs from now on; the running engine ends, as its own are somebody else's now."""
        if lease != self.lease:
            await self.release()
            self.lease = lease

    async def release(self) -> StopReport | None:
        """Stop the engine, if there is one, and wait until nothing is left of it."""
        running, self._running, self._started_with, self._ceiling = self._running, None, None, {}
        return await running.stop() if running is not None else None
