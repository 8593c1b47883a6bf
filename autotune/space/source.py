"""Where a search space stands, so that an error can name file, line and key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from autotune.errors import SpecError
from autotune.spec.document import Document, KeyPath, Plain, dotted, read_document
from autotune.spec.load import validated

ModelT = TypeVar("ModelT", bound=BaseModel)


@dataclass(frozen=True)
class Source:
    """A YAML file that was read, or a space that stands inline in a study (`document` is None then)."""

    name: str
    document: Document | None = None

    @classmethod
    def inline(cls, name: str) -> Source:
        """A space that came as a value."""
        return cls(name)

    @property
    def data(self) -> dict[str, Plain]:
        """The top level of the file; empty where it is no mapping."""
        data = self.document.data if self.document is not None else None
        return data if isinstance(data, dict) else {}

    def validated(self, model: type[ModelT]) -> ModelT:
        """The file as a typed value.

        Raises:
            SpecError: it does not fit.
        """
        assert self.document is not None
        return validated(self.document, model)

    def error(self, message: str, path: KeyPath, hint: str | None = None) -> SpecError:
        """An error at `path` of the file."""
        if self.document is None:
            return SpecError(message, key=dotted(("space", *path)), hint=hint)
        file, line = self.document.where(path)
        return SpecError(message, file=file, line=line, key=dotted(path) or None, hint=hint)


def read_source(path: Path) -> Source:
    """Read one YAML file.

    Raises:
        SpecError: it cannot be read or is no YAML.
    """
    return Source(path.stem, read_document(path))
