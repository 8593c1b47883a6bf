"""Follows a growing engine log: stages with their seconds, facts, and an early verdict, line by line."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from autotune.engine.failures import Failure, FailureClass, FailureContext, Watcher, classify
from autotune.engine.protocol import OnPhase, Phase
from autotune.engine.stages import Stage
from autotune.engine.startlog import StartLog
from autotune.virtualtime import now

BLOCK = 1 << 20
"""Bytes read at a time; between two blocks other tasks run."""
BACKLOG = 8 << 20
"""A log that has run further ahead than this is joined near its end: what floods so fast has no news in it."""
LINE = 1000
"""Characters of a line that are looked at for facts."""
SETTLE = 5.0
"""Seconds of silence after which a line that nearly decides is taken to decide."""
DEAD = ("EngineDeadError", "EngineCore encountered a fatal error", "Engine core proc ", "Worker proc ")
"""Words of a server whose engine is gone, although it may still answer."""


class LogFollower:
    """Reads what was added to a log since the last look.

    Args:
        path: the log.
        on_phase: called with a stage's name as it begins.
        context: what the caller knows beside the log.
    """

    def __init__(self, path: Path, on_phase: OnPhase | None = None, context: FailureContext | None = None) -> None:
        self.path = path
        self._on_phase = on_phase
        self._offset = 0
        self._rest = b""
        self._context = context or FailureContext()
        self._began = now()
        self._watcher = Watcher(context)
        self.log = StartLog(started=self._began)
        self.last_growth = now()
        self.dead_line = ""

    @property
    def stage(self) -> Stage:
        """Where the engine is."""
        return self.log.stage

    def phases(self) -> tuple[Phase, ...]:
        """The stages of the start so far, with their seconds."""
        return self.log.phases

    @property
    def verdict(self) -> Failure | None:
        """Why the start fails, as soon as a line decides."""
        if self._watcher.verdict is None and now() - self.last_growth > SETTLE:
            self._watcher.settle()
        return self._watcher.verdict

    def classify(self, otherwise: Failure, *, exit_code: int | None = None) -> Failure:
        """What the whole log says about a failure; `otherwise` where it says nothing better."""
        self.drain()
        if self._watcher.verdict is not None and self._watcher.verdict.known:
            return self._watcher.verdict
        context = self._context
        if not self.log.ready:
            context = replace(context, elapsed_s=now() - self._began)
        try:
            found = classify(self.path, phase=self.stage, exit_code=exit_code, context=context)
        except OSError:
            return otherwise
        if found.known and found.failure_class is not FailureClass.KILLED:
            return found
        unexplained = otherwise.failure_class is FailureClass.UNKNOWN and found.signature_id == "unmatched_exception"
        return found if unexplained else otherwise

    async def catch_up(self) -> None:
        """Read what there is, and let other tasks run between two blocks."""
        more = True
        while more:
            more = self.poll()
            await asyncio.sleep(0)

    def poll(self) -> bool:
        """Take in one block of new lines; True where there is more to read at once."""
        try:
            size = self.path.stat().st_size
        except OSError:
            return False
        if size < self._offset:  # the middle was cut out; what is left has been read
            self._offset, self._rest = max(0, size - BLOCK), b""
        if size - self._offset > BACKLOG:
            self._offset, self._rest = size - BLOCK, b""
        if size == self._offset:
            return False
        with self.path.open("rb") as stream:
            stream.seek(self._offset)
            block = stream.read(BLOCK)
        self._offset += len(block)
        self.last_growth = now()
        *lines, self._rest = (self._rest + block).split(b"\n")
        self._rest = self._rest[-BLOCK:]
        for line in lines:
            self._take(line.decode(errors="replace"))
        return self._offset < size

    def drain(self) -> None:
        """Read to the end, the unfinished last line included. For a process that has ended."""
        while self.poll():
            pass
        if self._rest:
            self._take(self._rest.decode(errors="replace"))
            self._rest = b""

    def _take(self, raw: str) -> None:
        self._watcher.feed(raw)
        if self.log.ready and not self.dead_line and any(word in raw for word in DEAD):
            self.dead_line = raw.strip()
        # Only the dump of the configuration is long and tells something; other long lines are somebody's data.
        if len(raw) > LINE and " config: " not in raw[:200] and "args: " not in raw[:200]:
            raw = raw[:LINE]
        for event in self.log.feed(raw, now()):
            if event.stage is not None and self._on_phase is not None:
                self._on_phase(event.stage.value)
