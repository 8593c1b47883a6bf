"""A disk that is full or takes no more: room set aside for the last record, and what to do about it in words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autotune.errors import StoreError
from autotune.store.connecting import FILE

ROOM = 1 << 20
"""Bytes set aside: a record takes some tens of KiB, and SQLite writes it into its log first."""

_ADVICE = (
    ("full", "Make room on that disk (df -h {folder}) and run the study again: every finished trial is kept."),
    (
        "disk I/O error",
        "That disk is full or takes no more (df -h {folder}; dmesg). Repair this and run the study again: every "
        "finished trial is kept.",
    ),
    (
        "readonly database",
        "Make {file} and its folder writable (ls -l; mount | grep ro), or choose another `storage:`, and run the study "
        "again: every finished trial is kept.",
    ),
    (
        "unable to open",
        "Look at {file}: it must be a file, and its folder there and writable (ls -ld {folder}; df -h {folder}).",
    ),
    ("locked", "Another program has held it for 30 s: find it with `fuser {file}`, end it, and run the study again."),
    ("malformed", "The file is damaged: keep a copy, try `sqlite3 {file} .recover`, or go on with another `storage:`."),
    ("not a database", "That file is something else: move it away, or choose another `storage:`."),
)


def advice(url: str, cause: str) -> str:
    """What to do about an error of SQLite's, on a line of its own; empty where nothing is known."""
    if not url.startswith(FILE):
        return ""
    file = Path(url.removeprefix(FILE))
    for sign, text in _ADVICE:
        if sign in cause:
            return "\n  " + text.format(file=file, folder=file.parent)
    return ""


@dataclass(frozen=True)
class Reserve:
    """A file that only takes room, beside the database; it is given up for the last record before the disk is full."""

    path: Path

    def take(self) -> None:
        """Set the room aside.

        Raises:
            StoreError: there is no room even for this.
        """
        try:
            self.path.write_bytes(b"\0" * ROOM)
        except OSError as error:
            self.path.unlink(missing_ok=True)
            raise StoreError(
                f"{self.path.parent} has no room for a study: {error.strerror}\n"
                f"  Make room (df -h {self.path.parent}) or choose another `storage:`; every finished trial is kept."
            ) from error

    def give(self) -> bool:
        """Free the room; False where there is none left to free."""
        try:
            self.path.unlink()
        except OSError:
            return False
        return True
