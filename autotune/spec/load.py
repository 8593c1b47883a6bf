"""Reads a study file. Whatever is wrong with it ends as `SpecError`: file, line, key, what is legal, what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from autotune.errors import SpecError, SpecErrors
from autotune.spec.document import Document, read_document
from autotune.spec.explain import spec_errors
from autotune.spec.overrides import apply_overrides
from autotune.spec.secrets import find_secrets
from autotune.spec.study import StudySpec

ModelT = TypeVar("ModelT", bound=BaseModel)


def load_study(path: Path | str, overrides: Sequence[str] = ()) -> StudySpec:
    """Read and check a study file.

    Args:
        path: the YAML file.
        overrides: ``key=value`` texts that are laid over it, such as ``search.trials=5``; values are YAML.

    Raises:
        SpecError: the file or an override is wrong; with several mistakes it is a `SpecErrors` that lists all.
    """
    return validated(apply_overrides(read_document(path), overrides), StudySpec)


@contextmanager
def placing(path: Path | str, overrides: Sequence[str] = ()) -> Iterator[None]:
    """Errors that name a key of the study file `path` get its line, or the override that the key came from.

    For what is only found out beyond the file itself, such as a search space that is not there.
    """
    try:
        yield
    except SpecError as error:
        found = error.errors if isinstance(error, SpecErrors) else (error,)
        if any(one.file is not None or one.key is None for one in found):
            raise
        document = apply_overrides(read_document(path), overrides)
        placed = [_placed(one, document) for one in found]
        raise (placed[0] if len(placed) == 1 else SpecErrors(placed)) from error


def _placed(error: SpecError, document: Document) -> SpecError:
    file, line = document.where_key(error.key or "")
    return SpecError(error.message, file=file, line=line, key=error.key, hint=error.hint)


def completed(kept: str) -> str:
    """A study as its database holds it, with the defaults of keys that this version knows and that one did not.

    What no longer reads as a study (a key is gone) comes back as it is.
    """
    try:
        return StudySpec.model_validate_json(kept).model_dump_json()
    except ValidationError:
        return kept


def validated(document: Document, model: type[ModelT]) -> ModelT:
    """The document as a typed value; also for a search space that stands in a file of its own.

    Raises:
        SpecError: as for `load_study`.
    """
    errors = find_secrets(document)
    if not isinstance(document.data, dict):
        hint = "write one key a line, such as `model: Qwen/Qwen3-8B`"
        raise SpecError("must be a mapping of keys", file=document.file, line=1, hint=hint)
    try:
        value = model.model_validate(document.data)
    except ValidationError as error:
        secret = {item.key for item in errors}
        errors += [item for item in spec_errors(error, model, document) if item.key not in secret]
    except RecursionError:
        errors.append(SpecError("is nested too deeply", file=document.file, hint="write it flatter"))
    else:
        if not errors:
            return value
    if len(errors) == 1:
        raise errors[0]
    raise SpecErrors(sorted(errors, key=lambda item: item.line or 0))
