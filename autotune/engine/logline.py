"""One line of an engine's output, taken apart: who wrote it, how loud, when, and the text itself.

vLLM writes ``(EngineCore pid=739) INFO 11-29 14:57:05 [core.py:116] text``; older versions leave out the process,
the bracket or the year, uvicorn writes ``INFO:     text``, a traceback has no prefix at all, and a container
runtime puts a stamp or a service name in front of everything. Whatever does not fit is text without a prefix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

MAX_LINE_CHARS = 16_384
"""Longer lines are cut: a scheduler dump of megabytes says nothing in its tail."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
# grep -n, compose ("vllm-1  | "), a stamp of the container runtime, Kubernetes or journald, the journal's unit.
_CONTAINER = re.compile(
    r"^(?:\d+:(?=\d{4}-|\())?(?:[A-Za-z][\w.-]*\s+\|\s?)?"
    r"(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,\d]*(?:Z|[+-]\d\d:?\d\d)?\s+(?:std(?:out|err) [FP] |\|\s?)?)?"
    r"(?:(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d )?[\w.-]+ [\w.@-]+\[\d+\]: )?"
)
_FRAME_OF_A_VIEWER = re.compile(r"^[│|]\s?")
_PROCESS = re.compile(r"^\((?P<process>[\w.:-]+(?:\s+[\w.=-]+)*?)\s+pid=(?P<pid>\d+)(?:,\s*ip=[^)]*)?\)\s?")
_RANK = re.compile(r"^\[(?P<rank>rank\d+)\]:?\s?")
_LEVEL = re.compile(
    r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)\b:?"
    r"(?:\s+(?P<stamp>\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?))?"
    r"(?:\s+\[?(?P<source>[\w./-]+\.py)(?::\d+)?\])?"
    r"(?:\s(?P<text>.*)|$)"
)


@dataclass(frozen=True, slots=True)
class LogLine:
    """A parsed line. ``process`` and ``level`` are empty where the line does not say."""

    number: int
    text: str
    raw: str
    process: str = ""
    level: str = ""
    source: str = ""
    stamp: float | None = None
    """Seconds within a year without a name (vLLM's stamps carry none)."""

    @property
    def from_engine(self) -> bool:
        """Written by an engine core or a worker, not by the API server."""
        return bool(self.process) and not self.process.startswith("APIServer")


def parse_line(raw: str, number: int) -> LogLine:
    """Take one line apart; ``number`` counts from 1. Never raises: garbage comes back as text."""
    raw = _ANSI.sub("", raw[:MAX_LINE_CHARS]).rstrip()
    rest = raw
    if rest[:1].isalnum():
        prefix = _CONTAINER.match(rest)
        rest = rest[prefix.end() :] if prefix else rest
    elif rest[:1] in ("│", "|"):
        rest = _FRAME_OF_A_VIEWER.sub("", rest)
    process = ""
    while found := _PROCESS.match(rest):
        # Older versions put the prefixes of all parents in front; the last one wrote the line.
        process, rest = found["process"], rest[found.end() :]
    if not process and (ranked := _RANK.match(rest)):
        process, rest = ranked["rank"], rest[ranked.end() :]
    level = _LEVEL.match(rest)
    if level is None:
        return LogLine(number, rest, raw, process)
    return LogLine(
        number=number,
        # uvicorn pads its levels; vLLM's own text keeps its indentation, which marks a traceback's frames.
        text=(level["text"] or "") if level["source"] or level["stamp"] else (level["text"] or "").strip(),
        raw=raw,
        process=process,
        level=level["level"],
        source=level["source"] or "",
        stamp=_seconds(level["stamp"]),
    )


def _seconds(stamp: str | None) -> float | None:
    if stamp is None:
        return None
    try:
        # A leap year, so that 29 February is a day.
        moment = datetime.strptime(f"2000-{stamp[:14]}", "%Y-%m-%d %H:%M:%S")
    except ValueError:
        return None
    return (moment - datetime(2000, 1, 1)).total_seconds()
