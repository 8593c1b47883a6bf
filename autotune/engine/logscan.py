"""Reads an engine's log line by line and keeps what may decide why it failed. Memory does not grow with the log."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from functools import cache

from autotune.engine.failure_values import DecidingLine
from autotune.engine.logline import LogLine, parse_line
from autotune.engine.redaction import redact
from autotune.engine.signatures import Signature, load_signatures
from autotune.engine.stages import Stage, StageTracker

THEN_WINDOW = 12
"""Lines within which a signature's second expression must stand."""
_MEMORY = 200
_SHOWN_CHARS = 600

_FRAME = re.compile(r"^\s+File \"(?P<path>[^\"]+)\", line \d+, in (?P<function>\S+)")
_EXCEPTION = re.compile(
    r"^\s*(?:[A-Za-z_][\w.]*\.)?(?P<name>[A-Z]\w*(?:Error|Exception|Failure|Timeout|Invalid\w*|Unavailable))(?::|$)"
)
# What a dying engine says on the way out; never the cause.
_NOISE = re.compile(
    r"^(?:RuntimeError: cancelled|asyncio\.exceptions\.CancelledError|(?:\w+\.)*CancelledError|SystemExit|"
    r"KeyboardInterrupt|BrokenPipeError|ConnectionResetError|EOFError$|zmq\.error\.\w+|ProcessLookupError|"
    r"Exception: WorkerProc initialization failed|Exception ignored in)"
)
# Sources whose ERROR lines quote whole configurations and prompts.
_QUOTING_SOURCES = frozenset({"dump_input.py", "request_logger.py"})
# Frames of a traceback that say in which stage it happened, the most telling first.
_STAGE_FRAMES: tuple[tuple[Stage, re.Pattern[str]], ...] = tuple(
    (stage, re.compile(pattern))
    for stage, pattern in (
        (Stage.WARMUP, r"_dummy_sampler_run|_dummy_pooler_run|kernel_warmup|warming up sampler"),
        (Stage.GRAPHS, r"\bcapture_model\b|_capture_cudagraphs|\bgraph_capture\b|[Cc]apturing (?:CUDA |cuda)graphs"),
        (
            Stage.PROFILING,
            r"\bprofile_run\b|determine_(?:available_memory|num_available_blocks)|profile_cudagraph_memory",
        ),
        (Stage.KV_CACHE, r"initialize_from_config|initialize_kv_cache|_allocate_kv_cache|allocate_gpu_cache"),
        (Stage.WEIGHTS, r"\bload_model\b|\bload_weights\b|\bcreate_weights\b|process_weights_after_loading"),
        (Stage.SERVING, r"\brun_busy_loop\b|_process_engine_step"),
    )
)


@dataclass(frozen=True, slots=True)
class Match:
    """A signature found at a line."""

    signature: Signature
    line: DecidingLine
    groups: dict[str, str]
    stage: Stage
    also: tuple[DecidingLine, ...] = ()

    @property
    def key(self) -> tuple[int, int, int]:
        """Sorts the most telling match first."""
        return (int(self.signature.tier), self.line.number, self.signature.place)


@dataclass(frozen=True, slots=True)
class Unmatched:
    """An exception that no signature knows. ``path`` is the source file that raised it, where the traceback says."""

    line: DecidingLine
    stage: Stage
    path: str
    from_engine: bool


@dataclass(slots=True)
class _Waiting:
    signature: Signature
    line: LogLine
    groups: dict[str, str]
    stage: Stage
    left: int
    lines: list[DecidingLine] = field(default_factory=list)


class Scanner:
    """Feeds on lines; ``matches``, ``unmatched`` and the counters are the findings so far."""

    def __init__(self, *, stage: Stage | None = None) -> None:
        """``stage``: where the caller knows the engine to be when the first line comes."""
        self.matches: dict[str, Match] = {}
        self.unmatched: Unmatched | None = None
        self.lines = 0
        self.recognised = 0
        self.errors = 0
        self.first_error: DecidingLine | None = None
        self._tail: deque[LogLine] = deque(maxlen=8)
        self.stalled_reports = 0
        self._given = stage
        self._tracker = StageTracker()
        self._recent: deque[tuple[str, str]] = deque(maxlen=_MEMORY)
        self._waiting: list[_Waiting] = []

    @property
    def tail(self) -> tuple[DecidingLine, ...]:
        """The last lines that are not empty."""
        return tuple(shown(line) for line in self._tail)

    @property
    def stage(self) -> Stage:
        """Where the engine is, by the log; the caller's word counts until the log says more."""
        if self._given is not None and self._tracker.stage is Stage.IMPORT:
            return self._given
        return self._tracker.stage

    @property
    def ready(self) -> bool:
        """The server has come up."""
        return self._tracker.serving

    @property
    def shut_down(self) -> bool:
        """An ordered shutdown has begun; what comes after it is no failure."""
        return self._tracker.stage is Stage.SHUTDOWN

    def feed(self, raw: str) -> tuple[Match, ...]:
        """Take in one line and return the signatures that it completes. Never raises on any text."""
        self.lines += 1
        line = parse_line(raw, self.lines)
        if line.raw.strip():
            self._tail.append(line)
        if line.level or line.process:
            self.recognised += 1
        if self._tracker.feed(line) is Stage.SERVING:
            self._forget()
        found = self._continue_waiting(line)
        if not self.shut_down and line.source not in _QUOTING_SOURCES:
            found += self._look(line)
        self._recent.append((line.process, line.text))
        kept = tuple(match for match in found if match.signature.id not in self.matches)
        for match in kept:
            self.matches.setdefault(match.signature.id, match)
        return kept

    def best(self) -> Match | None:
        """The match that says most: lowest tier, then the earliest line, then the first in the file."""
        return min(self.matches.values(), key=lambda match: match.key, default=None)

    def _forget(self) -> None:
        """The server is up: whatever was reported while it booted, it has survived."""
        self.matches.clear()
        self._waiting.clear()
        self.unmatched = None
        self.first_error = None
        self.errors = 0

    def _look(self, line: LogLine) -> list[Match]:
        text = line.text
        if not text:
            return []
        if line.level == "INFO":
            self._count_stall(text)
        loud = line.level in ("", "ERROR", "CRITICAL")
        frame = _is_frame(text)
        found: list[Match] = []
        stage: Stage | None = None
        for signature in _eligible(line.level, self.ready):
            if frame and not signature.frames:
                continue
            hit = signature.find(text)
            if hit is None:
                continue
            stage = stage or self._stage_at(line)
            if signature.stages and stage not in signature.stages:
                continue
            groups, end = hit
            if signature.then is None or signature.then.search(text, end):
                found.append(Match(signature, shown(line), groups, stage))
            elif len(self._waiting) < 16:
                self._waiting.append(_Waiting(signature, line, groups, stage, THEN_WINDOW))
        if loud and not frame:
            self._note_exception(line, bool(found))
        return found

    def _continue_waiting(self, line: LogLine) -> list[Match]:
        done: list[Match] = []
        for waiting in list(self._waiting):
            waiting.left -= 1
            waiting.lines.append(shown(line))
            then = waiting.signature.then
            if then is not None and then.search(line.text):
                groups = waiting.groups | _validation_groups(waiting.lines)
                also = tuple(waiting.lines[-3:])
                done.append(Match(waiting.signature, shown(waiting.line), groups, waiting.stage, also))
                self._waiting.remove(waiting)
            elif waiting.left <= 0:
                self._waiting.remove(waiting)
        return done

    def _note_exception(self, line: LogLine, matched: bool) -> None:
        exception = _EXCEPTION.match(line.text) is not None and not _NOISE.match(line.text.strip())
        client_fault = self.ready and not line.from_engine
        if (exception or line.level in ("ERROR", "CRITICAL")) and not client_fault:
            self.errors += 1
            self.first_error = self.first_error or shown(line)
        if not exception or matched or client_fault:
            return
        better = self.unmatched is None or (line.from_engine and not self.unmatched.from_engine)
        if better:
            self.unmatched = Unmatched(shown(line), self._stage_at(line), self._raised_in(line), line.from_engine)

    def _count_stall(self, text: str) -> None:
        if not text.startswith("Engine "):
            return
        idle = re.search(r"prompt throughput: 0\.0 .*generation throughput: 0\.0 .*Running: [1-9]", text)
        if idle is None:
            # It went on: what looked like a stall was none.
            self.stalled_reports = 0
            self.matches.pop("stall", None)
        else:
            self.stalled_reports += 1

    def _stage_at(self, line: LogLine) -> Stage:
        """The stage of a failing line: the traceback above it knows best, then the log's progress."""
        if self.ready:
            return Stage.SERVING
        above = [text for process, text in self._recent if process == line.process]
        for stage, pattern in _STAGE_FRAMES:
            if any(pattern.search(text) for text in above):
                return stage
        return self.stage

    def _raised_in(self, line: LogLine) -> str:
        for process, text in reversed(self._recent):
            if process == line.process and (frame := _FRAME.match(text)):
                return frame["path"]
        return ""


@cache
def _eligible(level: str, serving: bool) -> tuple[Signature, ...]:
    """The signatures that a line of this level may match, before the server is up or after."""
    return tuple(
        signature for signature in load_signatures() if level in signature.levels and (signature.serving or not serving)
    )


def shown(line: LogLine) -> DecidingLine:
    """The line as it may be printed and stored: without its prefix, redacted, not endless."""
    return DecidingLine(line.number, redact(line.text[:_SHOWN_CHARS].strip() or line.raw[:_SHOWN_CHARS].strip()))


def _is_frame(text: str) -> bool:
    """A traceback's frame or the source line that it quotes."""
    return text.startswith(("    ", "\t", '  File "', "  +")) and not _EXCEPTION.match(text)


def _validation_groups(lines: list[DecidingLine]) -> dict[str, str]:
    """Field and reason of a pydantic error from the lines below its head."""
    groups: dict[str, str] = {}
    texts = [line.text.strip() for line in lines]
    for text in texts:
        if re.fullmatch(r"[a-z_][\w.]*", text) and "field" not in groups:
            groups["field"] = text
        elif "[type=" in text or text.startswith(("Value error", "Input should", "Invalid JSON")):
            groups["reason"] = text.partition(" [type=")[0].removeprefix("Value error, ")
            if value := re.search(r"input_value='?([^,'\]]+)", text):
                groups["value"] = value[1]
            break
    return groups
