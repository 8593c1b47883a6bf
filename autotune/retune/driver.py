"""The real tuner of a pass: reads this host, runs canaries and re-tunings as studies, renders files."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from autotune.assembly import StudyParts, assemble
from autotune.engine import cpu_setup
from autotune.engine.probe import installed_version
from autotune.errors import EnvironmentFault
from autotune.events import Observer
from autotune.export.pick import gather, renamed
from autotune.export.registry import EXPORTERS
from autotune.host.fingerprint import fingerprint
from autotune.host.gpus import read_gpus
from autotune.outcome import Infeasible, Measured, TrialRecord
from autotune.result import FINAL, Recommendation, recommendation_from_json
from autotune.retune.guard import obstacles
from autotune.retune.ledger import Pairs, Reading, Tuning
from autotune.retune.observe import histogram_json, observe_profile, profile_of, service_version
from autotune.retune.promotion import Tuned
from autotune.retune.substudy import INPUT_FILE, OUTPUT_FILE, CanaryRules, canary_spec, retune_name, retune_spec
from autotune.retune.triggers import STUDY, STUDY_PARTS, WATCHED
from autotune.retune.tuner import Adopted, CanaryResult, GiveWay, Sight
from autotune.search.objectives import Objectives
from autotune.space.config import EngineConfig
from autotune.spec.resolved import resolved_yaml
from autotune.spec.retune import RetuneSpec
from autotune.spec.study import StudySpec
from autotune.study import Study, study_of

SAME_MODEL = ("model", "model_config", "model_revision")


@dataclass(frozen=True)
class StudyTuner:
    """Tunes a study again. The caller holds the locks.

    Attributes:
        study: the study that has been run.
        retune: its `retune` part, or the defaults.
        observer: what watches a study that runs here.
        now: the clock, Unix seconds.
    """

    study: Study
    retune: RetuneSpec
    observer: Callable[[StudyParts], Observer]
    now: Callable[[], float] = time.time

    # -- looking -----------------------------------------------------------------------------------------------------

    async def adopt(self) -> Adopted:
        """See `Tuner.adopt`."""
        records, final = self._results(self.study)
        found = _required(self.study, final)
        seen = dict(next((r.environment for r in reversed(records) if r.environment), ()))
        now = dict(await self._present())
        measured = {name: seen[name] for name in WATCHED if name in seen and name != "model"}
        version = next((r.resolved.version for r in reversed(records) if r.resolved and r.resolved.version), "")
        if "engine" in now and version:
            measured["engine"] = version.partition("+")[0]
        known = tuple(sorted({**now, **self._parts_that_ran(), **measured}.items()))
        return Adopted(
            found.config, found.gains, found.sentence, found.quality, str(self.study.folder), known,
            profile_of(self.study.spec.load),
        )  # fmt: skip

    def _parts_that_ran(self) -> dict[str, str]:
        """Hashes of the study file as it was run: it may have been edited since."""
        store = self.study.existing_store()
        try:
            head = store.head()
        finally:
            store.close()
        try:
            return _parts(StudySpec.model_validate_json(head.spec)) if head is not None else {}
        except ValidationError:
            return {}  # of a version with other keys

    async def look(self, before: Reading | None) -> Sight:
        """See `Tuner.look`."""
        present = await self._present()
        seen = await observe_profile(self.retune.triggers, os.environ, before, self.now())
        return Sight(present, seen.profile, (seen.note,) if seen.note else (), seen.reading)

    async def _present(self) -> Pairs:
        """The fingerprint; where vLLM is not installed on this side, the service says which version it runs."""
        found = dict(await asyncio.to_thread(self._fingerprint))
        if "engine" not in found and (version := await service_version(self.retune.triggers, os.environ)):
            found["engine"] = version
        return tuple(sorted(found.items()))

    def gpus(self) -> int:
        """See `Tuner.gpus`."""
        hardware = self.study.spec.hardware
        if hardware.gpus is not None:
            return hardware.gpus
        return len(hardware.devices) if hardware.devices is not None else len(read_gpus().gpus)

    async def obstacles(self) -> Sequence[str]:
        """See `Tuner.obstacles`."""
        return obstacles(self.study.spec, self.retune, await asyncio.to_thread(read_gpus))

    def _fingerprint(self) -> Pairs:
        spec = self.study.spec
        found = cpu_setup.locate() if spec.engine.python == "cpu" else None
        version = ""
        if spec.engine.kind == "vllm":
            python = str(found.python) if found else spec.engine.python or sys.executable
            version = installed_version(python).partition("+")[0]
        model = str(found.model) if found and spec.model == cpu_setup.MODEL_NAME else spec.model
        entries = dict(fingerprint(model=model, revision=spec.revision, engine=version, extra=_parts(spec)))
        if entries.get("gpus") == "0":  # a driver that does not answer now has taken no GPU away
            del entries["gpus"]
        return tuple(sorted((name, entries[name]) for name in WATCHED if name in entries))

    # -- measuring ---------------------------------------------------------------------------------------------------

    async def canary(self, incumbent: EngineConfig, number: int, seconds: float) -> CanaryResult:
        """See `Tuner.canary`. Its folder goes at its end; with the logs of a fault it stays until the next canary."""
        folder = self._home / f"canary-{number:04d}"
        for old in self._home.glob("canary-[0-9]*"):
            shutil.rmtree(old, ignore_errors=True)
        try:
            result = await self._measured_canary(folder, incumbent, seconds)
        except (GiveWay, asyncio.CancelledError):
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if not result.problem:
            shutil.rmtree(folder, ignore_errors=True)
        return result

    async def _measured_canary(self, folder: Path, incumbent: EngineConfig, seconds: float) -> CanaryResult:
        study = study_of(canary_spec(self.study.spec, incumbent, folder), self.study.path)
        self._hand_over(study, load=True, reference=False)
        with study.locked():
            parts = await assemble(study)
            try:
                rules = CanaryRules(
                    parts.spec, parts.objectives, parts.baseline, parts.preflight, incumbent, self.baseline()
                )
                await self._within(replace(parts, rules=rules), seconds, 0.0)
                return self._read_canary(parts.store.history(), incumbent)
            finally:
                parts.close()

    def _read_canary(self, records: Sequence[TrialRecord], incumbent: EngineConfig) -> CanaryResult:
        objectives = Objectives.of(self.study.spec)
        found: dict[str, list[float]] = {incumbent.hash: [], self.baseline().hash: []}
        problem = ""
        for record in records:
            values = objectives.values(record) if record.proposal.origin == "confirm" else None
            if values is not None and record.config.hash in found:
                found[record.config.hash].append(values[0] if objectives.items[0].maximize else 1 / values[0])
            elif isinstance(record.outcome, Infeasible) and record.config.hash == incumbent.hash:
                problem = record.outcome.reason
        mine = () if problem else tuple(found[incumbent.hash])
        if not mine and not problem:
            raise EnvironmentFault(
                "the canary could not be measured", hint="its logs are in the study's `retune` folder"
            )
        return CanaryResult(mine, tuple(found[self.baseline().hash]), _gpu_hours(records), problem)

    async def tune(self, tuning: Tuning, incumbent: EngineConfig, seconds: float) -> Tuned:
        """See `Tuner.tune`. The study in `tuning.folder` is begun or continued."""
        study = self._sub(tuning, incumbent, seconds)
        self._prepare(study, tuning)
        before = self.spent(tuning)
        like = self.warm_start(Path(tuning.folder))
        with study.locked():
            parts = await assemble(study, like=like, anew="a re-tuning measures anew")
            try:
                await self._within(parts, seconds, before)
            except EnvironmentFault:
                records = parts.store.history()
                illegal = _illegal_baseline(records)
                if illegal is None:
                    raise
                cost = _gpu_hours(records) - before
                return Tuned(incumbent, False, (), "", "", tuning.folder, cost, illegal)
            finally:
                parts.close()
        records, final = self._results(study)
        found = _required(study, final)
        return Tuned(
            found.config, found.proven, found.gains, found.sentence, found.quality, tuning.folder,
            _gpu_hours(records) - before,
        )  # fmt: skip

    async def _within(self, parts: StudyParts, seconds: float, before: float) -> None:
        """Run a study; give way when its time is over: its engine is stopped and what it finished is kept."""
        try:
            async with asyncio.timeout(seconds):
                await parts.run(self.observer(parts))
        except TimeoutError:
            spent = _gpu_hours(parts.store.history()) - before
            raise GiveWay("the budget is spent or the window closes; engines are stopped", spent) from None

    def _sub(self, tuning: Tuning, incumbent: EngineConfig, seconds: float) -> Study:
        folder = Path(tuning.folder)
        spec = retune_spec(self.study.spec, self.retune, tuning, incumbent, folder, seconds)
        return study_of(spec, self.study.path)

    def _prepare(self, study: Study, tuning: Tuning) -> None:
        """The new study's folder: its file for the record, the histograms, and what it takes over."""
        study.folder.mkdir(parents=True, exist_ok=True)
        text = resolved_yaml(study.spec.model_copy(update={"storage": "."}))
        (study.folder / "study.yaml").write_text(text, encoding="utf-8")
        if tuning.profile is not None:
            for name, bins in ((INPUT_FILE, tuning.profile.inputs), (OUTPUT_FILE, tuning.profile.outputs)):
                (study.folder / name).write_text(histogram_json(bins), encoding="utf-8")
        self._hand_over(study, load=not tuning.moved, reference=True)

    def _hand_over(self, study: Study, *, load: bool, reference: bool) -> None:
        """Give the study's placed load and quality reference to a new one, which then measures by the same rule.

        The reference stays that of the study's own baseline: small losses of several promotions would add up otherwise.
        It is left out where the model itself has changed.
        """
        source, target = self.study.existing_store(), study.store()
        try:
            if target.head() is not None:
                return
            target.open(study.spec.model_dump_json(), "")
            placed = source.get("load", "placed") if load else None
            if placed is not None:
                target.put("load", "placed", placed)
            for key, body in source.documents("quality") if reference and self._same_model() else ():
                if key.startswith("reference-"):
                    target.put("quality", key, body)
        finally:
            source.close()
            target.close()

    def _same_model(self) -> bool:
        records, _ = self._results(self.study)
        seen = dict(next((r.environment for r in records if r.environment), ()))
        now = dict(self._fingerprint())
        return all(seen.get(name) == now.get(name) for name in SAME_MODEL if name in seen and name != "model")

    def warm_start(self, folder: Path) -> Path:
        """The study file whose front is tried first: the last re-tuning before this one that measured, else the study.

        One that was given up, or whose incumbent could not serve, has no front.
        """
        for path in sorted(folder.parent.glob("[0-9]*/study.yaml"), reverse=True):
            if path.parent.name < folder.name and (path.parent / "study.db").is_file():
                records, _ = self._results(self._stored(path.parent))
                if any(isinstance(record.outcome, Measured) for record in records):
                    return path
        return self.study.path

    def spent(self, tuning: Tuning) -> float:
        """See `Tuner.spent`."""
        folder = Path(tuning.folder)
        if not (folder / "study.db").is_file():
            return 0.0
        store = self._stored(folder).store()
        try:
            return _gpu_hours(store.history())
        finally:
            store.close()

    def _stored(self, folder: Path) -> Study:
        """The study of a re-tuning, for reading its results."""
        name = retune_name(self.study.spec, folder)
        spec = self.study.spec.model_copy(update={"storage": str(folder.absolute()), "name": name})
        return study_of(spec, self.study.path)

    # -- results -----------------------------------------------------------------------------------------------------

    @property
    def _home(self) -> Path:
        return (self.study.folder / "retune").absolute()

    def folder(self, number: int) -> str:
        """See `Tuner.folder`."""
        return str(self._home / f"{number:04d}")

    def baseline(self) -> EngineConfig:
        """See `Tuner.baseline`."""
        spec = self.study.spec
        return EngineConfig.of(dict(spec.engine.args)).merged(dict(spec.baseline.args), spec.baseline.env)

    async def render(self, tuned: Tuned) -> tuple[tuple[str, str], ...]:
        """See `Tuner.render`."""
        return self._files(self._stored(Path(tuned.study)))

    async def render_adopted(self, adopted: Adopted) -> tuple[tuple[str, str], ...]:
        """See `Tuner.render_adopted`."""
        return self._files(self.study)

    def _files(self, study: Study) -> tuple[tuple[str, str], ...]:
        records, final = self._results(study)
        chosen = renamed(gather(study, records, final), self.study.spec.name)
        if study.folder != self.study.folder:  # a re-tuning has a study file of its own
            file = os.path.relpath(study.folder / "study.yaml", self.study.path.absolute().parent)
            chosen = replace(chosen, evidence=replace(chosen.evidence, study_file=file))
        files = EXPORTERS[self.retune.promote.format].render(chosen)
        return tuple((str(file.path), file.text) for file in files)

    def _results(self, study: Study) -> tuple[tuple[TrialRecord, ...], Recommendation | None]:
        store = study.existing_store()
        try:
            return store.history(), store.read(*FINAL, recommendation_from_json)
        finally:
            store.close()


def _required(study: Study, found: Recommendation | None) -> Recommendation:
    if found is None:
        hint = f"let it end first: autotune run {study.path}"
        raise EnvironmentFault(f"study {study.spec.name!r} has no recommendation", hint=hint)
    return found


def _illegal_baseline(records: Sequence[TrialRecord]) -> str | None:
    """Why the baseline cannot serve, where that is what the last baseline trial found."""
    found = [record.outcome for record in records if record.proposal.origin == "baseline"]
    return found[-1].reason if found and isinstance(found[-1], Infeasible) else None


def _gpu_hours(records: Sequence[TrialRecord]) -> float:
    return sum(record.seconds * record.gpus for record in records) / 3600


def _parts(spec: StudySpec) -> dict[str, str]:
    """A hash of every part of a study whose change is a reason to tune again."""
    return {f"{STUDY}{part}": _hash(spec.model_dump_json(include={part})) for part in STUDY_PARTS}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
