"""Reads what an engine says while it starts: the stages with their seconds, what it resolved, what it warned of.

Pure and incremental; memory does not grow with the log. Understands vLLM 0.26 to 0.33 on GPUs and CPUs, and takes
any other text without a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from autotune.engine.logline import LogLine, parse_line
from autotune.engine.notices import Notice, read_notice
from autotune.engine.protocol import Phase
from autotune.engine.stages import Stage, StageTracker
from autotune.engine.startfacts import FactReader, StartFacts

_MAX_NOTICES = 200
_YEAR_S = 366 * 86_400.0


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a line brought: a stage that begins, or a notice."""

    line: int
    stage: Stage | None = None
    notice: Notice | None = None


@dataclass(slots=True)
class _Clock:
    """The time of each line: the caller's where it is given, else the line's own stamp, else the last one."""

    now: float | None = None
    stamped: float | None = None

    def advance(self, line: LogLine, at: float | None) -> float | None:
        if at is not None:
            self.now = at
        elif line.stamp is not None:
            if self.now is None:
                self.now = 0.0
            elif self.stamped is not None:
                step = line.stamp - self.stamped
                # A step back of half a year is New Year; a small one is a clock that was set, or another process.
                self.now += max(step + _YEAR_S if step < -_YEAR_S / 2 else step, 0.0)
            self.stamped = max(line.stamp, self.stamped) if self.stamped and line.stamp < self.stamped else line.stamp
        return self.now


@dataclass(slots=True)
class StartLog:
    """Feed it the engine's output line by line.

    Args:
        started: the caller's clock at the start of the process, in seconds, where ``feed`` is given times too; then
            the import of the API server is a stage of its own.
    """

    started: float | None = None
    facts_reader: FactReader = field(default_factory=FactReader)
    notices: list[Notice] = field(default_factory=list)
    ready: bool = False
    _tracker: StageTracker = field(default_factory=StageTracker)
    _clock: _Clock = field(default_factory=_Clock)
    _seconds: dict[Stage, float] = field(default_factory=dict)
    _since: float | None = None
    _lines: int = 0
    _previous: float | None = None

    def feed(self, raw: str, at: float | None = None) -> list[Event]:
        """Take in one line; ``at`` is the caller's clock in seconds. Returns what the line brought, mostly nothing."""
        self._lines += 1
        line = parse_line(raw, self._lines)
        now = self._clock.advance(line, at)
        if self._since is None:
            self._since = self.started if self.started is not None else now
        events: list[Event] = []
        before = self._tracker.stage
        stage = self._tracker.feed(line)
        if stage is not None:
            self._change(before, stage, now)
            self.ready = self.ready or stage is Stage.SERVING
            events.append(Event(self._lines, stage=stage))
        self.facts_reader.feed(line)
        self._split_compile(line, now)
        if now is not None:
            self._previous = now
        if line.level in ("", "INFO", "WARNING") and (notice := self._notice(line)):
            events.append(Event(self._lines, notice=notice))
        return events

    def feed_all(self, lines: Iterable[str]) -> StartLog:
        """Feed every line; returns itself."""
        for raw in lines:
            self.feed(raw)
        return self

    @property
    def stage(self) -> Stage:
        """Where the engine is."""
        return self._tracker.stage

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The finished stages of the start in their order, with seconds. The stamps' resolution is one second."""
        return tuple(
            Phase(stage.value, round(self._seconds[stage], 3))
            for stage in Stage
            if stage in self._seconds and stage not in self._unmeasured()
        )

    def _unmeasured(self) -> frozenset[Stage]:
        """Stages that are no part of a start; the import too, where nobody said when the process began."""
        hidden = {Stage.SERVING, Stage.SHUTDOWN}
        return frozenset(hidden if self.started is not None else hidden | {Stage.IMPORT})

    @property
    def facts(self) -> StartFacts:
        """What the engine said about itself so far."""
        return self.facts_reader.facts

    def _change(self, before: Stage, stage: Stage, now: float | None) -> None:
        if now is None:
            return
        start = self._since if self._since is not None else now
        cut = now
        if stage is Stage.INIT and self._previous is not None:
            # The engine process imports everything again and is silent meanwhile: that gap is a stage of its own.
            cut = max(self._previous, start)
            self._add(Stage.ENGINE_IMPORT, now - cut)
        self._add(before, cut - start)
        self._since = now

    def _split_compile(self, line: LogLine, now: float | None) -> None:
        """``torch.compile took 37.19 s in total``: the engine's own figure divides the profile run."""
        if now is None or not (found := re.match(r"torch\.compile (?:took|takes) ([\d.]+) s in total", line.text)):
            return
        if self._tracker.stage not in (Stage.COMPILE, Stage.PROFILING):
            return
        spent = sum(self._seconds.pop(stage, 0.0) for stage in (Stage.COMPILE, Stage.PROFILING))
        spent += now - (self._since if self._since is not None else now)
        compiling = min(float(found[1]), spent)
        self._add(Stage.COMPILE, compiling)
        self._add(Stage.PROFILING, spent - compiling)
        self._tracker.stage = Stage.PROFILING
        self._since = now

    def _add(self, stage: Stage, seconds: float) -> None:
        self._seconds[stage] = self._seconds.get(stage, 0.0) + max(seconds, 0.0)

    def _notice(self, line: LogLine) -> Notice | None:
        if len(self.notices) >= _MAX_NOTICES or (self.ready and line.level == "INFO"):
            return None
        notice = read_notice(line)
        if notice is None or any(
            (old.notice_id, old.parameter) == (notice.notice_id, notice.parameter) for old in self.notices
        ):
            return None
        self.notices.append(notice)
        return notice
