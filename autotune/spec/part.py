"""What all parts of a study have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator, model_validator

from autotune.spec.checks import Problem, StudyProblems
from autotune.spec.describe import accepts_flags, describe, item_of, show

Scalar = bool | int | float | str | None
ArgValue = Scalar | list[Scalar] | dict[str, Scalar | list[Scalar]]
"""A vLLM argument as YAML gives it. Names are vLLM's, with underscores; nested ones use a dot."""


class Part(BaseModel):
    """What all parts of a study share: unknown keys are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    def problems(self) -> Iterable[Problem]:
        """What does not hold between the keys of this part."""
        return ()

    @field_validator("*", mode="before")
    @classmethod
    def _no_flag_as_number(cls, value: object, info: ValidationInfo) -> object:
        """Refuse true and false where a number is wanted; pydantic would read them as 1 and 0."""
        annotation = cls.model_fields[info.field_name or ""].annotation
        if accepts_flags(annotation):
            return value
        if isinstance(value, bool):
            raise ValueError(f"must be {describe(annotation)}, not {show(value)}")
        if isinstance(value, list):
            takes = describe(item_of(annotation, list))
            flags = [(index, item) for index, item in enumerate(value) if isinstance(item, bool)]
            if flags:
                raise StudyProblems([Problem((index,), f"must be {takes}, not {show(item)}") for index, item in flags])
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = list(self.problems())
        if problems:
            raise StudyProblems(problems)
        return self
