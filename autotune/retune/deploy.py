"""The deployed files: replaced as a whole or not at all, whatever happens in between."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import EnvironmentFault, SpecError
from autotune.retune.ledger import Version

CURRENT = "current"


@dataclass(frozen=True)
class Deployment:
    """Where a version's files go.

    Attributes:
        out: a file (a path with a suffix, for formats of one file), or a folder in which every version has a folder of
            its own and the link `current` names the one that counts.
    """

    out: Path

    @property
    def single(self) -> bool:
        """The target is one file."""
        return self.out.suffix != "" and not self.out.is_dir()

    @property
    def path(self) -> Path:
        """What a service reads."""
        return self.out if self.single else self.out / CURRENT

    def existing(self) -> tuple[tuple[str, str], ...]:
        """What is there now, as (relative path, text); empty where nothing is."""
        if self.single:
            return ((self.out.name, self.out.read_text(encoding="utf-8")),) if self.out.is_file() else ()
        found = sorted(path for path in self.path.rglob("*") if path.is_file()) if self.path.is_dir() else []
        return tuple((str(path.relative_to(self.path)), path.read_text(encoding="utf-8")) for path in found)

    def check(self, files: Sequence[tuple[str, str]]) -> None:
        """Refuse what cannot be replaced atomically.

        Raises:
            SpecError: several files would have to go to one.
        """
        if self.single and len(files) > 1:
            names = ", ".join(name for name, _ in files)
            hint = "name a folder, such as `out: deploy`; its `current` link is switched"
            raise SpecError(f"the format writes several files ({names})", key="retune.promote.out", hint=hint)

    def install(self, version: Version) -> None:
        """Deploy a version. Doing it twice is the same as once; a kill leaves the old files or the new ones.

        Raises:
            EnvironmentFault: the files cannot be written; what was there is still there.
        """
        try:
            if self.single:
                self.out.parent.mkdir(parents=True, exist_ok=True)
                _replace(self.out, version.files[0][1])
            else:
                self._switch(version)
        except OSError as error:
            raise EnvironmentFault(f"{self.path} cannot be replaced: {error.strerror}") from error

    def _switch(self, version: Version) -> None:
        name = f"{version.number:04d}"
        final, partial = self.out / name, self.out / f".{name}.partial"
        self.out.mkdir(parents=True, exist_ok=True)
        if not final.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
            for path, text in version.files:
                target = partial / path
                target.parent.mkdir(parents=True, exist_ok=True)
                _write(target, text)
            partial.rename(final)
            _sync(self.out)
        link = self.out / f".{CURRENT}.partial"
        link.unlink(missing_ok=True)
        link.symlink_to(name, target_is_directory=True)
        link.replace(self.out / CURRENT)
        _sync(self.out)


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    _write(partial, text)
    if path.exists():
        shutil.copymode(path, partial)
    partial.replace(path)
    _sync(path.parent)


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def _sync(folder: Path) -> None:
    """Make a rename survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
