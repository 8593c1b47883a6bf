"""Arguments that a study file gives as they are: its vLLM must have them, or nothing of the study can start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from autotune.errors import SpecError, SpecErrors
from autotune.space.arguments import ArgumentTable, check_config
from autotune.space.config import EngineConfig
from autotune.space.renames import translate
from autotune.spec.study import StudySpec
from autotune.spec.topology import is_split_name


def check_given(spec: StudySpec, table: ArgumentTable) -> None:
    """Hold `engine.args`, `baseline.args` and `confirm.against` against the arguments of a vLLM.

    Names of other supported versions are carried over, as they are for a start.

    Raises:
        SpecError: one is unknown, or its value does not fit; with several it is a `SpecErrors`. Keys are those of the
            study file.
    """
    errors = [error for key, args in _groups(spec) for error in _wrong(key, args, table)]
    if errors:
        raise errors[0] if len(errors) == 1 else SpecErrors(errors)


def _groups(spec: StudySpec) -> Iterator[tuple[str, Mapping[str, object]]]:
    yield "engine.args", spec.engine.args
    yield "baseline.args", spec.baseline.args
    for name, rival in spec.confirm.against.items():
        yield f"confirm.against.{name}.args", rival.args


def _wrong(key: str, args: Mapping[str, object], table: ArgumentTable) -> Iterator[SpecError]:
    for name, value in args.items():
        if is_split_name(name):
            continue
        said, _ = translate(EngineConfig.of({name: value}), table.version)
        for problem in check_config(said, table):
            if problem.fatal:
                yield SpecError(problem.message, key=f"{key}.{name}", hint=problem.hint or None)
