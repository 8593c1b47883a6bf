"""What crosses between driver and nodes: JSON of typed values, and the files of a trial. Nothing secret, no pickle."""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pydantic import TypeAdapter

from autotune.executor import TrialTask
from autotune.outcome import TrialRecord
from autotune.space.config import EngineConfig
from autotune.space.headroom import AS_ASKED, Headroom

FILE_LIMIT = 16 << 20
"""Of a larger file the end is sent: that is where a log tells how it ended."""


@dataclass(frozen=True, slots=True)
class Document:
    """A document of the study's database: the quality reference, a verdict, the placed load."""

    kind: str
    key: str
    body: str


@dataclass(frozen=True, slots=True)
class Host:
    """One of the hosts that a trial holds: its address, and the NVML indices of the GPUs that are the trial's there."""

    address: str
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeStudy:
    """What a node must know of a study before its first trial.

    Attributes:
        spec: the study as JSON; values of ``${NAME}`` are not filled in, the node's own environment has them.
        base: folder that relative names in the study start from; the same path on every node.
        baseline: what runs today.
        vocabulary: of the model, 0 where unknown.
        gpus: of a trial.
        hosts: that a trial holds, its own first.
        headroom: how much wider than asked for engines are started.
    """

    spec: str
    base: str
    baseline: EngineConfig
    vocabulary: int
    gpus: int
    hosts: tuple[Host, ...] = ()
    headroom: Headroom = AS_ASKED


@dataclass(frozen=True, slots=True)
class Job:
    """A trial to run, and the documents that this place does not have yet."""

    task: TrialTask
    documents: tuple[Document, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """A finished trial, the documents that it has made, and its folder on the node."""

    record: TrialRecord
    folder: str
    documents: tuple[Document, ...] = ()


NODE_STUDY: TypeAdapter[NodeStudy] = TypeAdapter(NodeStudy)
JOB: TypeAdapter[Job] = TypeAdapter(Job)
REPLY: TypeAdapter[Reply] = TypeAdapter(Reply)


def pack(folder: Path) -> bytes:
    """Every regular file below a folder, compressed; of a large one its end."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
            if not path.is_file() or path.is_symlink():
                continue
            with path.open("rb") as stream:
                stream.seek(max(0, path.stat().st_size - FILE_LIMIT))
                content = stream.read(FILE_LIMIT)
            member = tarfile.TarInfo(path.relative_to(folder).as_posix())
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def unpack(data: bytes, folder: Path) -> None:
    """The inverse of `pack`. Only regular files are written, and only below `folder`."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        for member in archive:
            place = PurePosixPath(member.name)
            if not member.isfile() or place.is_absolute() or ".." in place.parts:
                continue
            content = archive.extractfile(member)
            if content is not None:
                target = folder / place
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content.read())
