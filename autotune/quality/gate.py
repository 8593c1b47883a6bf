"""The gate: does this engine answer as well as the baseline? Once per precision key, cached in the study's database."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from pydantic import TypeAdapter, ValidationError

from autotune.engine import cpu_setup
from autotune.engine.protocol import RunningEngine
from autotune.quality import sanity
from autotune.quality.answers import ScorerError, first_error
from autotune.quality.candidate import candidate_checks
from autotune.quality.finalist import Finals, combined, finals_of
from autotune.quality.observe import Observation, Suite, record
from autotune.quality.precision import only_change, precision_key, same_precision
from autotune.quality.reference import Reference, read_reference
from autotune.quality.report import QualityCheck, QualityReport, QualityVerdict
from autotune.quality.verdict import Limits, verdict_of, violation_of
from autotune.quality.wire import HttpScorer, Scorer
from autotune.space.config import EngineConfig, FrozenValue
from autotune.spec.study import StudySpec
from autotune.virtualtime import now

REFERENCE_FILE = "quality-reference.json"
REFERENCE_KEY = "AUTOTUNE_REFERENCE_API_KEY"
"""Variable with the key of the server that `quality.reference` names by its URL."""
_REPORT: TypeAdapter[QualityReport] = TypeAdapter(QualityReport)
MAX_CONCURRENCY = 64
"""Continuations in flight at most; more would take longer and show nothing new."""


class GateStore(Protocol):
    """Where references and verdicts are kept: documents by key, in the study's database."""

    def get(self, key: str) -> str | None:
        """The latest document of that key."""

    def put(self, key: str, body: str) -> None:
        """Keep a document."""


@dataclass
class Gate:
    """See `autotune.trial.QualityGate`.

    Attributes:
        spec: the study.
        memory: keeps the reference and the verdicts.
        baseline: the configuration whose answers are the measure.
        suite: what is scored.
        source: a reference file, or the URL of a server to record one from, instead of the baseline.
        finals: what finalists are asked on top.
    """

    spec: StudySpec
    memory: GateStore
    baseline: EngineConfig
    suite: Suite
    source: Path | str | None = None
    finals: Finals = field(default_factory=Finals)

    def __post_init__(self) -> None:
        self._reference: Reference | None = None
        self._recording = asyncio.Lock()

    async def check(self, engine: RunningEngine, config: EngineConfig, folder: Path) -> QualityReport:
        """The verdict on `config` in tiers 0 and 1, measured or taken from an earlier trial of the same precision.

        The baseline is always the first: it leaves the reference. A verdict of `undecided` says why in its checks.

        Args:
            engine: the running engine, idle.
            config: what it was started with.
            folder: the trial's folder; the reference's file is written there.
        """
        key = precision_key(config, engine.resolved)
        if (known := self._read(self._verdict_name(key))) is not None:
            return replace(known, cached=True, seconds=0.0)
        begin = now()
        async with HttpScorer(engine.url, engine.served_model, engine.api_key) as scorer:
            checks = await self._checks(scorer, engine, config, key, folder)
        report = QualityReport(verdict_of(checks), tuple(checks), violation_of(checks), key, now() - begin)
        if not any(check.name in ("reference", "answers") for check in checks):
            self.memory.put(self._verdict_name(key), _REPORT.dump_json(report).decode())
        return report

    def lone_culprit(self, config: EngineConfig) -> tuple[str, FrozenValue] | None:
        """The one value that can be blamed where `config` fails, or None where there are several."""
        return only_change(config, self.baseline)

    async def check_finalist(self, engine: RunningEngine, config: EngineConfig, folder: Path) -> QualityReport:
        """Tiers 0 to 3: on top of `check`, the study's tasks and command. The baseline is to be asked first.

        Args:
            engine: the running engine, idle.
            config: what it was started with.
            folder: for logs.
        """
        report = await self.check(engine, config, folder)
        if self.finals.empty or report.verdict is QualityVerdict.FAILED:
            return report
        name = f"finalist-{_hash(self.finals.identity)}-{self._verdict_name(report.precision_key)}"
        if (known := self._read(name)) is not None:
            return replace(known, cached=True, seconds=0.0)
        begin = now()
        baseline = same_precision(config, self.baseline)
        asked = await self.finals.checks(engine, folder, self.memory, place=self._suite_name, baseline=baseline)
        checks = (*report.checks, *asked)
        seconds = report.seconds + now() - begin
        verdict = combined(report.checks, asked)
        full = QualityReport(verdict, checks, violation_of(checks), report.precision_key, seconds)
        # What could not be asked (no answer, no baseline yet) is asked again; too few questions stay too few.
        if not any(check.verdict is QualityVerdict.UNDECIDED and check.estimate.n <= 1 for check in asked):
            self.memory.put(name, _REPORT.dump_json(full).decode())
        return full

    async def _checks(
        self, scorer: Scorer, engine: RunningEngine, config: EngineConfig, key: str, folder: Path
    ) -> list[QualityCheck]:
        found: list[QualityCheck] = []
        try:
            reference, again = await self._obtain(scorer, engine, config, key, folder)
            if reference is None:
                found = [_without_reference()]
            else:
                found = await candidate_checks(scorer, reference, self.suite, Limits.of(self.spec.quality), again)
        except* ScorerError as errors:
            found = [_no_answer(errors, engine)]
        return found

    async def _obtain(
        self, scorer: Scorer, engine: RunningEngine, config: EngineConfig, key: str, folder: Path
    ) -> tuple[Reference | None, Observation | None]:
        """The study's reference; recorded now where this engine is the baseline's equal and there is none yet.

        Whoever records it gets what the engine showed when it ran again, too: it need not be asked a third time.
        """
        async with self._recording:
            if self._reference is not None:
                return self._reference, None
            again: Observation | None = None
            if isinstance(self.source, Path):
                self._reference = read_reference(self.source)
            elif (body := self.memory.get(self._reference_name)) is not None:
                self._reference = Reference.from_json(body)
            elif self.source is not None:
                self._keep(await self._record_elsewhere(self.source), folder)
            elif same_precision(config, self.baseline):
                version = engine.resolved.version
                found, again = await record(scorer, self.suite, model=self.spec.model, version=version, key=key)
                self._keep(found, folder)
            return self._reference, again

    def _keep(self, reference: Reference, folder: Path) -> None:
        self.memory.put(self._reference_name, reference.to_json())
        folder.mkdir(parents=True, exist_ok=True)
        (folder / REFERENCE_FILE).write_text(reference.to_json(), "utf-8")
        self._reference = reference

    async def _record_elsewhere(self, url: str) -> Reference:
        """Record the reference from a running server, such as today's deployment in full precision."""
        api_key = os.environ.get(REFERENCE_KEY, "")
        async with HttpScorer(url, "", api_key) as any_model:
            names = await any_model.models()
        if not names:
            raise ScorerError(f"{url} lists no model", 404)
        async with HttpScorer(url, names[0], api_key) as scorer:
            return (await record(scorer, self.suite, model=names[0], version="", key="elsewhere"))[0]

    def _read(self, name: str) -> QualityReport | None:
        body = self.memory.get(name)
        try:
            return _REPORT.validate_json(body) if body is not None else None
        except ValidationError:
            return None  # written by another version: check again

    @property
    def _reference_name(self) -> str:
        elsewhere = f"-{_hash([self.source])}" if isinstance(self.source, str) else ""
        return f"reference-{self._suite_name}{elsewhere}"

    def _verdict_name(self, key: str) -> str:
        quality = self.spec.quality
        limits = [quality.kl_limit, quality.perplexity_limit, quality.agreement_limit, str(self.source)]
        return f"verdict-{self._suite_name}-{_hash(limits)}-{key}"

    @property
    def _suite_name(self) -> str:
        return _hash([self.suite.hash, self.spec.model, self.spec.revision])


def _without_reference() -> QualityCheck:
    check = sanity.yes_or_no("reference", False, "the baseline has left no reference yet")
    return replace(check, verdict=QualityVerdict.UNDECIDED)


def _no_answer(errors: BaseExceptionGroup[ScorerError], engine: RunningEngine) -> QualityCheck:
    """The engine died or refused while it was scored. A dead one is the driver's case; a refusal leaves it open."""
    first = first_error(errors)
    check = sanity.yes_or_no("answers", False, str(first)[:300])
    broken = first.status >= 500 and engine.failure() is None
    return replace(check, verdict=QualityVerdict.FAILED if broken else QualityVerdict.UNDECIDED)


def _hash(values: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:10]


def gate_for(spec: StudySpec, memory: GateStore, baseline: EngineConfig, *, beside: Path | None = None) -> Gate | None:
    """The gate of a study, or None where it is switched off.

    Args:
        spec: the study.
        memory: keeps references and verdicts.
        baseline: complete configuration of the baseline.
        beside: folder that relative paths in `quality.reference` and files of questions are resolved against.

    Raises:
        SpecError: the reference file or a file of questions is wrong, or lm-eval is named and not installed.
    """
    quality = spec.quality
    if not quality.enabled:
        return None
    source = _source(quality.reference, beside or Path())
    closed = [int(level) for level in spec.load.levels] if spec.load.arrivals == "closed" else [8]
    suite = Suite(
        quality.documents,
        quality.positions,
        max(1, min(MAX_CONCURRENCY, max(closed))),
        long=spec.engine.kind != "simulated" and spec.hardware.gpus != 0,
    )
    known = cpu_setup.locate() if spec.model == cpu_setup.MODEL_NAME else None
    model = str(known.model) if known else spec.model
    finals = finals_of(
        quality.tasks, quality.command, model=model, concurrency=suite.concurrency, beside=beside or Path()
    )
    return Gate(spec, memory, baseline, suite, source, finals)


def _source(reference: str | None, beside: Path) -> Path | str | None:
    """Where the reference comes from, checked now where it is a file."""
    if not reference or reference.startswith(("http://", "https://")):
        return reference or None
    read_reference(beside / reference)
    return beside / reference
