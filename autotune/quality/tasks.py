"""Questions with answers, from a JSON Lines file of the user, asked of a running engine.

One question a line::

    {"question": "What is 17 + 25?", "answer": 42, "kind": "numeric"}
    {"prompt": "The capital of Peru is", "answer": "lima", "kind": "exact", "max_tokens": 4}
    {"messages": [{"role": "user", "content": "..."}], "answer": "^(yes|no)", "kind": "regex"}
    {"question": "Give a point as JSON.", "answer": {"type": "object", "required": ["x", "y"]}, "kind": "schema"}

`question` and `messages` go to the chat route, `prompt` to the completions route.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from autotune.errors import SpecError
from autotune.quality.answers import Reply
from autotune.quality.schema import conforms, schema_problem

_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")
_HINT = (
    'a line is like {"question": "What is 17 + 25?", "answer": 42, "kind": "numeric"}; '
    "kinds are exact, regex, numeric and schema"
)


class Question(BaseModel):
    """One line of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    question: str | None = None
    prompt: str | None = None
    messages: tuple[Mapping[str, str], ...] | None = None
    answer: JsonValue
    kind: Literal["exact", "regex", "numeric", "schema"] = "exact"
    max_tokens: Annotated[int, Field(ge=1, le=8192)] = 128
    tolerance: Annotated[float, Field(ge=0)] = 1e-6
    """For `numeric`: largest relative error."""

    @model_validator(mode="after")
    def _consistent(self) -> Question:
        if sum(item is not None for item in (self.question, self.prompt, self.messages)) != 1:
            raise ValueError("give exactly one of question, prompt and messages")
        if self.kind == "regex":
            _compiled(self.answer)
        if self.kind == "numeric" and (isinstance(self.answer, bool) or not isinstance(self.answer, int | float)):
            raise ValueError("a numeric answer is a number")
        if self.kind == "schema" and (problem := schema_problem(self.answer)):
            raise ValueError(problem)
        return self

    def right(self, text: str) -> bool:
        """Whether an engine's answer is right."""
        match self.kind:
            case "exact":
                return _plain(text) == _plain(str(self.answer))
            case "regex":
                return _compiled(self.answer).search(text) is not None
            case "numeric":
                return _close(text, float(str(self.answer)), self.tolerance)
            case "schema":
                return conforms(_fenced(text), self.answer)


class Answering(Protocol):
    """The part of a scorer that answers questions."""

    async def chat(self, body: Mapping[str, object]) -> Reply:
        """See `autotune.quality.wire.Scorer.chat`."""

    async def complete(self, prompt: str, count: int) -> str:
        """The text after a prompt, greedily, at most `count` tokens."""


@dataclass(frozen=True, slots=True)
class Task:
    """A set of questions. `hash` changes with every change of them."""

    name: str
    questions: tuple[Question, ...]

    @property
    def hash(self) -> str:
        text = json.dumps([item.model_dump(mode="json") for item in self.questions], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def read_task(path: Path) -> Task:
    """Read a file of questions.

    Raises:
        SpecError: it cannot be read, or a line is wrong; file and line are named.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot be read: {error}", file=path, key="quality.tasks", hint=_HINT) from error
    found = [_question(line, path, number) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise SpecError("holds no question", file=path, key="quality.tasks", hint=_HINT)
    return Task(path.stem, tuple(found))


def _question(line: str, path: Path, number: int) -> Question:
    try:
        return Question.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise SpecError(
            f"{place}: {first['msg']}" if place else str(first["msg"]), file=path, line=number, hint=_HINT
        ) from error


async def ask(engine: Answering, task: Task, concurrency: int) -> tuple[bool, ...]:
    """Ask all questions greedily; one right or wrong per question, in order.

    Raises:
        ScorerError: the engine does not answer (within an exception group).
    """
    slots = asyncio.Semaphore(concurrency)

    async def one(question: Question) -> bool:
        async with slots:
            return question.right(await _answer(engine, question))

    async with asyncio.TaskGroup() as group:
        jobs = [group.create_task(one(question)) for question in task.questions]
    return tuple(job.result() for job in jobs)


async def _answer(engine: Answering, question: Question) -> str:
    if question.prompt is not None:
        return await engine.complete(question.prompt, question.max_tokens)
    messages = question.messages or ({"role": "user", "content": question.question or ""},)
    reply = await engine.chat({"messages": [dict(item) for item in messages], "max_tokens": question.max_tokens})
    return reply.text


def _compiled(pattern: JsonValue) -> re.Pattern[str]:
    try:
        return re.compile(str(pattern), re.IGNORECASE | re.DOTALL)
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from error


def _plain(text: str) -> str:
    """Case, white space and closing punctuation do not count."""
    return " ".join(text.lower().split()).strip(" .!\"'`*")


def _close(text: str, wanted: float, tolerance: float) -> bool:
    """The last number of the text is the answer, as in GSM8K's usual scoring; sign and decimals count."""
    numbers: Sequence[str] = _NUMBER.findall(text)
    if not numbers:
        return False
    return abs(float(numbers[-1].replace(",", "")) - wanted) <= tolerance * max(1.0, abs(wanted))


def _fenced(text: str) -> str:
    """JSON within a Markdown fence counts as JSON."""
    found = re.search(r"```(?:json)?\s*(.*?)```", text, re.DOTALL)
    return (found.group(1) if found else text).strip()
