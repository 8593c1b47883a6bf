"""One thing that the doctor has seen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How much it matters: an error will spoil the study, a warning may, a note will not."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, what was seen, and what to do about it (empty where nothing is to be done)."""

    check: str
    level: Level
    text: str
    fix: str = ""


def ok(check: str, text: str) -> Finding:
    """Nothing to do."""
    return Finding(check, Level.OK, text)


def note(check: str, text: str, fix: str = "") -> Finding:
    """Worth knowing."""
    return Finding(check, Level.NOTE, text, fix)


def warning(check: str, text: str, fix: str) -> Finding:
    """May spoil a study."""
    return Finding(check, Level.WARNING, text, fix)


def error(check: str, text: str, fix: str) -> Finding:
    """Will spoil a study."""
    return Finding(check, Level.ERROR, text, fix)


def as_entries(findings: Iterable[Finding]) -> tuple[tuple[str, str], ...]:
    """What is not in order, for a fingerprint: `doctor.<check>` and the text."""
    bad = [finding for finding in findings if finding.level in (Level.ERROR, Level.WARNING)]
    return tuple(sorted((f"doctor.{finding.check}", f"{finding.level}: {finding.text}") for finding in bad))
