"""Where calibrations are kept: for a process, in a folder of the host, among a study's documents, or in several."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CalibrationKey:
    """What a calibration holds for."""

    card: str
    model: str
    version: str

    def __str__(self) -> str:
        digest = hashlib.sha256("\n".join((self.card, self.model, self.version)).encode()).hexdigest()[:8]
        readable = "-".join(part.rsplit("/", 1)[-1] for part in (self.card, self.model, self.version))
        return "".join(char if char.isalnum() or char in "._" else "-" for char in readable)[:100] + f"-{digest}"


class CalibrationStore(Protocol):
    """Keeps calibrations as text."""

    def get(self, key: str) -> str | None:
        """The text kept under `key`."""

    def put(self, key: str, text: str) -> None:
        """Keep `text`."""


@dataclass
class MemoryCalibrations:
    """Keeps them for as long as the process lives."""

    texts: dict[str, str] = field(default_factory=dict)

    def get(self, key: str) -> str | None:
        return self.texts.get(key)

    def put(self, key: str, text: str) -> None:
        self.texts[key] = text


@dataclass(frozen=True)
class FileCalibrations:
    """Keeps them in a folder, one file each, for every study of the host. What cannot be written is not kept."""

    folder: Path

    def get(self, key: str) -> str | None:
        try:
            return (self.folder / f"{key}.json").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None

    def put(self, key: str, text: str) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            part = self.folder / f"{key}.json.part"
            part.write_text(text, encoding="utf-8")
            part.replace(self.folder / f"{key}.json")
        except OSError:
            return  # a full disk must not end a study; the next start calibrates again


class Documents(Protocol):
    """What a study's store offers: documents by kind and key."""

    def get(self, kind: str, key: str) -> str | None: ...

    def put(self, kind: str, key: str, body: str) -> None: ...


@dataclass(frozen=True)
class DocumentCalibrations:
    """Keeps them among the documents of a study."""

    documents: Documents

    def get(self, key: str) -> str | None:
        return self.documents.get("calibration", key)

    def put(self, key: str, text: str) -> None:
        self.documents.put("calibration", key, text)


@dataclass(frozen=True)
class LayeredCalibrations:
    """Asks each store in turn and writes to all: the study's own first, then the host's."""

    stores: tuple[CalibrationStore, ...]

    def get(self, key: str) -> str | None:
        return next((text for store in self.stores if (text := store.get(key)) is not None), None)

    def put(self, key: str, text: str) -> None:
        for store in self.stores:
            store.put(key, text)
