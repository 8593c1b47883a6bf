"""What must hold between the keys of a study. Pure: takes typed values, gives back problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: where (relative to the part that was checked), what is wrong, and what to do."""

    path: tuple[str | int, ...]
    message: str
    hint: str = ""


class StudyProblems(ValueError):
    """Problems of a part of a study; pydantic carries them to whoever reads its errors."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(f"{'.'.join(map(str, item.path))}: {item.message}" for item in problems))
