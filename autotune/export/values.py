"""What is exported, what an exporter gives back, and the protocol between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Protocol

from autotune.load.report import Estimate, Level
from autotune.space.arguments import ArgumentTable, bundled_table
from autotune.space.config import EngineConfig


@dataclass(frozen=True, slots=True)
class Measure:
    """One measured figure: its metric key, such as `ttft_p95_ms`, at one load level."""

    key: str
    level: Level
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class Evidence:
    """Why this configuration: everything that a reader of the file needs to trust or to repeat it.

    Attributes:
        study: name of the study.
        study_file: the file that repeats it.
        trials: numbers of the trials that measured this configuration.
        claim: one sentence, with its interval where an improvement was proven.
        gains: (objective, ratio to the baseline, low, high) from fresh starts; above 1 is better.
        effects: (changed setting, what it is worth) from the undo tests.
        measures: figures of this configuration, each with its 95 % interval.
        starts: fresh starts of the confirmation that the figures are means of, their intervals the span of those of the
            starts; 0: figures of one trial of the search.
        quality: one sentence.
        vllm_version: what it was measured with.
        hardware: what it was measured on, empty where unknown.
        date: day of the measurement, such as `2026-11-29`.
        simulated: no engine and no GPU was measured.
        warnings: what speaks against using it.
    """

    study: str
    study_file: str
    trials: tuple[int, ...]
    claim: str
    gains: tuple[tuple[str, float, float, float], ...] = ()
    effects: tuple[tuple[str, str], ...] = ()
    measures: tuple[Measure, ...] = ()
    starts: int = 0
    quality: str = ""
    vllm_version: str = ""
    hardware: str = ""
    date: str = ""
    simulated: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExportInput:
    """One configuration on its way to production.

    Attributes:
        name: of the deployment; a DNS label.
        model: Hugging Face id or folder.
        config: arguments and environment to run. Secrets are references (`${NAME}`).
        baseline: what runs today.
        evidence: why.
        revision: of the model.
        ready_s: longest measured time from start to the first answer, in seconds; 0 where unknown.
        table: arguments of the vLLM that will read the files.
        notes: what was changed on the way (renamed, left out), one sentence each.
    """

    name: str
    model: str
    config: EngineConfig
    baseline: EngineConfig
    evidence: Evidence
    revision: str | None = None
    ready_s: float = 0.0
    table: ArgumentTable = field(default_factory=bundled_table)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExportFile:
    """A file to write: a relative path and its text."""

    path: PurePosixPath
    text: str


class Exporter(Protocol):
    """Writes one format. Pure: the same input gives the same files."""

    @property
    def name(self) -> str:
        """As `--format` takes it."""

    @property
    def title(self) -> str:
        """What it is, in a few words."""

    def render(self, recommendation: ExportInput) -> tuple[ExportFile, ...]:
        """The files of this format; the first one is what goes to the terminal without `--out`."""


class OperationsExporter(Protocol):
    """Writes one thing that a server needs beside its start."""

    @property
    def name(self) -> str:
        """Short name."""

    def render(self, recommendation: ExportInput) -> tuple[ExportFile, ...]:
        """Its files.

        Raises:
            SpecError: the configuration was not measured.
        """
