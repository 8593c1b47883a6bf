"""Every exception that this project raises on purpose.

    AutotuneError            something went wrong that we can name
    ├── SpecError            the user's input is wrong: says where, what is legal and what to do (exit code 2)
    │   └── SpecErrors       several of them at once
    ├── EnvironmentFault     the host, the engine's environment or the network is at fault (exit code 3)
    │   └── Busy             somebody else holds the study or its GPUs: it may go on later
    └── StoreError           the study's database cannot be used (exit code 4)

A bad *configuration* is never an exception: it is a value (see `autotune.outcome`).
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
"""A disk that is full, a quota, a limit on the size of files, a disk that became read-only."""


class AutotuneError(Exception):
    """Base of all errors with a message meant for the user."""

    exit_code = 1


class SpecError(AutotuneError):
    """Wrong input.

    Args:
        message: what is wrong, in one sentence.
        file: the file it stands in.
        line: 1-based line in that file.
        key: dotted path of the key, for example ``load.levels[0]``.
        hint: what is legal and what to do.
    """

    exit_code = 2

    def __init__(
        self,
        message: str,
        *,
        file: Path | str | None = None,
        line: int | None = None,
        key: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.file = str(file) if file is not None else None
        self.line = line
        self.key = key
        self.hint = hint

    def __str__(self) -> str:
        place = self.file or ""
        if place and self.line is not None:
            place += f":{self.line}"
        parts = [part for part in (place, self.key, self.message) if part]
        text = ": ".join(parts)
        return f"{text}\n  {self.hint}" if self.hint else text


class SpecErrors(SpecError):
    """Several mistakes in one input, in the order of their lines. Place and key are those of the first."""

    def __init__(self, errors: Sequence[SpecError]) -> None:
        first = errors[0]
        super().__init__(first.message, file=first.file, line=first.line, key=first.key, hint=first.hint)
        self.errors = tuple(errors)

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


class EnvironmentFault(AutotuneError):
    """The machine, the engine's interpreter or the network does not allow to go on; nothing was learnt."""

    exit_code = 3

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{message}\n  {hint}" if hint else message)
        self.message = message
        self.hint = hint


class Busy(EnvironmentFault):
    """Another process of this tool holds what is needed; nothing is wrong, and later it is free."""


class StoreError(AutotuneError):
    """The study's database cannot be opened, read or written."""

    exit_code = 4
