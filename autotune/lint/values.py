"""A finding, and how bad it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """`error` does not start or does not do what it says, `warning` costs speed or quality, `info` is worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a launch configuration does wrong.

    Attributes:
        rule: name of the rule.
        severity: how bad it is.
        message: what is wrong.
        hint: what to do.
        source: the document that says so.
        argument: what it is about, empty for the whole file.
        line: 1-based line in the file, None where it does not stand there.
    """

    rule: str
    severity: Severity
    message: str
    hint: str
    source: str
    argument: str = ""
    line: int | None = None
