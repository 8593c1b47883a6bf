"""Lines that are no failures: an engine ignores, replaces or weakens a setting, or makes harmless noise.

The rules are data (``startlog.toml``).
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources

from autotune.engine.logline import LogLine, parse_line
from autotune.engine.redaction import redact

_SHOWN_CHARS = 600


class NoticeKind(StrEnum):
    """How much a warning matters: the first two make a trial something else than what was asked for."""

    IGNORED = "ignored"
    FALLBACK = "fallback"
    TRAP = "trap"
    NOTE = "note"
    NOISE = "noise"


@dataclass(frozen=True, slots=True)
class Notice:
    """A line in which the engine ignores, replaces or weakens a setting. ``parameter`` may be empty."""

    kind: NoticeKind
    notice_id: str
    parameter: str
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class NoticeRule:
    id: str
    kind: NoticeKind
    patterns: tuple[re.Pattern[str], ...]
    parameter: str

    def read(self, text: str) -> str | None:
        """The parameter that ``text`` is about, or None where the rule does not apply."""
        for pattern in self.patterns:
            if found := pattern.search(text):
                named = found.groupdict().get("name") or ""
                return self.parameter.replace("{name}", named)
        return None


@cache
def notice_rules() -> tuple[NoticeRule, ...]:
    text = resources.files("autotune.engine").joinpath("startlog.toml").read_text(encoding="utf-8")
    return tuple(
        NoticeRule(
            str(entry["id"]),
            NoticeKind(entry["kind"]),
            tuple(re.compile(pattern) for pattern in entry["match"]),
            str(entry.get("parameter", "")),
        )
        for entry in tomllib.loads(text)["notice"]
    )


def is_harmless(raw: str) -> bool:
    """The line is one that engines write in good health."""
    text = parse_line(raw, 1).text
    return any(rule.read(text) is not None for rule in notice_rules())


def read_notice(line: LogLine) -> Notice | None:
    """The notice in a line, or None; noise is none."""
    for rule in notice_rules():
        parameter = rule.read(line.text)
        if parameter is not None:
            if rule.kind is NoticeKind.NOISE:
                return None
            return Notice(rule.kind, rule.id, parameter, redact(line.text[:_SHOWN_CHARS]), line.number)
    return None
