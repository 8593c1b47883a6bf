"""What `import autotune` offers: read a study file, run the study, read what it found.

The command line does the same with the same parts; `examples/python_api.py` shows it. The function that runs a study
is called `tune`, because `autotune.run` is a module.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from autotune.assembly import assemble
from autotune.decision import Rules
from autotune.engine.protocol import RunningEngine
from autotune.errors import AutotuneError
from autotune.events import Observer, Silent
from autotune.outcome import Infeasible
from autotune.result import FINAL, StudyResult, busy_seconds, recommendation_from_json
from autotune.search.front import baseline_of
from autotune.search.objectives import Objectives
from autotune.space.config import EngineConfig
from autotune.study import Study, open_study

Settings: TypeAlias = Mapping[str, object]
"""Dotted keys of a study file with their values: ``{"search.trials": 20, "load.levels": [8, 16]}``."""

UNFINISHED = "the study has not ended"
"""`StudyResult.reason` of a study that can still go on."""


def load_study(path: Path | str, settings: Settings | None = None) -> Study:
    """Read and check a study file. Nothing is started or written.

    Args:
        path: the study file.
        settings: keys that are laid over the file, as `--set` does on the command line.

    Raises:
        SpecError: the file or a setting is wrong; file, line, key and what is legal are named.
    """
    return open_study(path, [f"{key}={json.dumps(value, default=str)}" for key, value in (settings or {}).items()])


def tune(
    study: Study | Path | str,
    settings: Settings | None = None,
    *,
    observer: Observer | None = None,
    like: Path | str | None = None,
) -> StudyResult:
    """Run a study to its end, or go on with one that was interrupted. Called again, it returns the same result.

    Args:
        study: a study, or the path of its file.
        settings: keys that are laid over the file; only together with a path.
        observer: is told what happens, for example an `autotune.cli.views.PlainView`.
        like: file of an older study whose measurements are taken over or tried first.

    Raises:
        SpecError: the study is wrong.
        EnvironmentFault: this host cannot run it or it is being run already; everything finished is kept.
        StoreError: its database cannot be used.
        KeyboardInterrupt: Ctrl-C; the engines are stopped, finished trials are kept, call it again to go on.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(tune_async(study, settings, observer=observer, like=like))
    raise AutotuneError(
        "tune() cannot run inside a running event loop, such as a notebook's\n  use: await autotune.tune_async(...)"
    )


async def tune_async(
    study: Study | Path | str,
    settings: Settings | None = None,
    *,
    observer: Observer | None = None,
    like: Path | str | None = None,
) -> StudyResult:
    """`tune` for a program that has an event loop. Cancelled, it stops the engines and keeps what is finished."""
    opened = _opened(study, settings)
    with opened.locked():
        parts = await assemble(opened, like=Path(like) if like is not None else None)
        try:
            return await parts.run(observer or Silent())
        finally:
            parts.close()


def read(study: Study | Path | str) -> StudyResult:
    """What a study has found so far. Nothing is started; it may be running meanwhile.

    Before the study's end the result has records and a front, and neither a recommendation nor a summary.

    Args:
        study: a study, or the path of its file.

    Raises:
        SpecError: the study file is wrong, or the study has never been run.
        StoreError: its database cannot be read.
    """
    opened = _opened(study, None)
    store = opened.existing_store()
    try:
        opened = opened.as_measured(store)
        records = tuple(sorted(store.history(), key=lambda record: record.number))
        ended = store.get(*FINAL) is not None
        recommendation = store.read(*FINAL, recommendation_from_json)
    finally:
        store.close()
    objectives = Objectives.of(opened.spec)
    today = baseline_of(records)
    baseline = today.config if today is not None else EngineConfig()
    rules = Rules(opened.spec, objectives, baseline, _NothingRefused())
    confirmation = rules.confirmation(records)
    spent = busy_seconds(records)
    return StudyResult(
        name=opened.spec.name,
        folder=opened.folder,
        objectives=objectives,
        records=records,
        confirmation=confirmation,
        recommendation=recommendation,
        reason=UNFINISHED if not ended else (rules.stop_reason(records, spent) or ""),
        summary=() if not ended else rules.summary(records, confirmation, recommendation),
    )


def _opened(study: Study | Path | str, settings: Settings | None) -> Study:
    if isinstance(study, Study):
        if settings:
            raise AutotuneError("settings are laid over a file\n  give them to load_study(), or give tune() a path")
        return study
    return load_study(study, settings)


class _NothingRefused:
    """A preflight for reading alone: what is in the store has been judged."""

    def refuse(self, config: EngineConfig) -> Infeasible | None:
        return None

    def learn(self, config: EngineConfig, engine: RunningEngine) -> None:
        return None
