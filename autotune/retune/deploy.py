"""The deployed files: replaced as a whole or not at all, whatever happens in between."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import EnvironmentFault, SpecError
from autotune.retune.ledger import Version

CURRENT = "current"
MISSING = "is missing"
OWNER = ".study"
"""File in a folder of deployments that names the study whose they are."""


@dataclass(frozen=True)
class Deployment:
    """Where a version's files go. What somebody edited there by hand is never lost: it is kept beside.

    Attributes:
        out: a file (a path with a suffix, for formats of one file), or a folder in which every version has a folder of
            its own and the link `current` names the one that counts.
        study: whose files these are; a folder belongs to one study.
    """

    out: Path
    study: str

    @property
    def single(self) -> bool:
        """The target is one file."""
        return self.out.suffix != "" and not self.out.is_dir()

    @property
    def path(self) -> Path:
        """What a service reads."""
        return self.out if self.single else self.out / CURRENT

    def existing(self) -> tuple[tuple[str, str], ...]:
        """What is there now, as (relative path, text); empty where nothing is.

        Raises:
            SpecError: it is no text, or belongs to another study.
        """
        self._check_owner()
        try:
            return tuple((name, data.decode()) for name, data in self._present().items())
        except UnicodeDecodeError:
            hint = "name another place in retune.promote.out; only text files are deployed"
            raise SpecError(f"{self.path} holds a file that is no text", key="retune.promote.out", hint=hint) from None

    def edits(self, version: Version) -> tuple[str, ...]:
        """In what the deployed files differ from a version, one entry a file; empty where they do not."""
        present = self._present()
        wanted = self._wanted(version)
        found = [f"{name} was edited" for name, data in present.items() if name in wanted and data != wanted[name]]
        found += [f"{name} was added" for name in present if name not in wanted]
        return (*found, *(f"{name} {MISSING}" for name in wanted if name not in present))

    def check(self, files: Sequence[tuple[str, str]]) -> None:
        """Refuse what cannot be replaced atomically, and what is another study's.

        Raises:
            SpecError: several files would have to go to one, or the folder belongs to another study.
        """
        if self.single and len(files) > 1:
            names = ", ".join(name for name, _ in files)
            hint = "name a folder, such as `out: deploy`; its `current` link is switched"
            raise SpecError(f"the format writes several files ({names})", key="retune.promote.out", hint=hint)
        self._check_owner()
        current = self.out / CURRENT
        if not self.single and current.is_dir() and not current.is_symlink():
            hint = f"make it a link: mv {current} {self.out / 'mine'} && ln -s mine {current}"
            raise SpecError(f"{current} is a folder, which no step replaces", key="retune.promote.out", hint=hint)

    def claim(self) -> None:
        """Mark the folder as this study's.

        Raises:
            EnvironmentFault: it cannot be written.
        """
        if self.single or (self.out / OWNER).is_file():
            return
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            _replace(self.out / OWNER, f"{self.study}\n")
        except OSError as error:
            raise EnvironmentFault(f"{self.out} cannot be written: {error.strerror}") from error

    def install(self, version: Version) -> None:
        """Deploy a version. Doing it twice is the same as once; a kill leaves the old files or the new ones.

        Raises:
            EnvironmentFault: the files cannot be written; what was there is still there.
        """
        self.claim()
        try:
            self._clean()
            if self.single:
                self.out.parent.mkdir(parents=True, exist_ok=True)
                _replace(self.out, version.files[0][1])
            else:
                self._switch(version)
        except OSError as error:
            raise EnvironmentFault(f"{self.path} cannot be replaced: {error.strerror}") from error

    def set_aside(self) -> Path | None:
        """Keep a copy of a file that was edited by hand before it is replaced; a folder stays where it is.

        Raises:
            EnvironmentFault: it cannot be written.
        """
        if not self.single:
            return self.path.resolve()
        taken = len(list(self.out.parent.glob(f"{glob.escape(self.out.name)}.edited-*")))
        copy = self.out.with_name(f"{self.out.name}.edited-{taken + 1}")
        try:
            shutil.copy2(self.out, copy)
        except OSError as error:
            raise EnvironmentFault(f"{self.out} was edited by hand and cannot be kept: {error.strerror}") from error
        return copy

    def _present(self) -> dict[str, bytes]:
        if self.single:
            return {self.out.name: self.out.read_bytes()} if self.out.is_file() else {}
        return _files_in(self.path)

    def _wanted(self, version: Version) -> dict[str, bytes]:
        if self.single:
            return {self.out.name: version.files[0][1].encode()}
        return {path: text.encode() for path, text in version.files}

    def _check_owner(self) -> None:
        mark = self.out / OWNER
        owner = mark.read_text(encoding="utf-8").strip() if mark.is_file() else self.study
        if owner != self.study:
            hint = "name another folder for this study, such as `out: deploy-" + self.study + "`"
            raise SpecError(f"{self.out} holds the files of study {owner!r}", key="retune.promote.out", hint=hint)

    def _switch(self, version: Version) -> None:
        name = self._folder_of(version)
        final, partial = self.out / name, self.out / f".{name}.partial"
        if not final.is_dir():
            for path, text in version.files:
                target = partial / path
                target.parent.mkdir(parents=True, exist_ok=True)
                _write(target, text)
            partial.rename(final)
            _sync(self.out)
        link = self.out / f".{CURRENT}.partial"
        link.symlink_to(name, target_is_directory=True)
        link.replace(self.out / CURRENT)
        _sync(self.out)

    def _folder_of(self, version: Version) -> str:
        """The folder that holds a version as it is in the history; one that was edited since keeps its edits."""
        name, number = f"{version.number:04d}", 1
        while (folder := self.out / name).is_dir() and _files_in(folder) != self._wanted(version):
            number += 1
            name = f"{version.number:04d}-{number}"
        return folder.name

    def _clean(self) -> None:
        """Remove what a kill or a full disk left half-written."""
        if self.single:
            self.out.with_name(f".{self.out.name}.partial").unlink(missing_ok=True)
            return
        for path in self.out.glob(".[0-9]*.partial"):
            shutil.rmtree(path)
        (self.out / f".{CURRENT}.partial").unlink(missing_ok=True)


def _files_in(folder: Path) -> dict[str, bytes]:
    """Contents by relative path."""
    found = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


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
