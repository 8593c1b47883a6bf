"""Questions, answers, and what a mistake in the file looks like."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.errors import SpecError
from autotune.quality.tasks import Question, read_task


@pytest.mark.parametrize(
    ("kind", "answer", "text", "right"),
    [
        ("exact", "Lima", " lima. ", True),
        ("exact", "Lima", "Lima, in Peru", False),
        ("exact", 42, "42", True),
        ("regex", "^(yes|no)\\b", "Yes, because", True),
        ("regex", "^(yes|no)\\b", "perhaps", False),
        ("numeric", 42, "17 + 25 = 42.", True),
        ("numeric", 1234.5, "It is 1,234.5", True),
        ("numeric", -3, "the answer is -3", True),
        ("numeric", 3, "the answer is -3", False),
        ("numeric", 3, "three", False),
        ("schema", {"type": "object", "required": ["x"]}, '```json\n{"x": 1}\n```', True),
        ("schema", {"type": "object", "required": ["x"]}, '{"y": 1}', False),
        ("schema", {"type": "object"}, "{x: 1}", False),
    ],
)
def test_answers_are_graded(kind: str, answer: object, text: str, right: bool) -> None:
    assert Question.model_validate({"question": "?", "answer": answer, "kind": kind}).right(text) is right


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "a", "answer": 1, "kind": "numerik"}', "kind"),
        ('{"question": "a", "prompt": "b", "answer": 1}', "exactly one of question, prompt and messages"),
        ('{"question": "a", "answer": "[", "kind": "regex"}', "no regular expression"),
        ('{"question": "a", "answer": "x", "kind": "numeric"}', "a numeric answer is a number"),
        ('{"question": "a", "answer": {"type": "objekt"}, "kind": "schema"}', "no JSON schema"),
        ('{"question": "a"}', "answer"),
        ('{"question": "a", "answer": 1, "points": 3}', "points"),
        ("{", "JSON"),
    ],
)
def test_mistakes_name_file_and_line(line: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"question": "1 + 1?", "answer": 2, "kind": "numeric"}\n\n' + line + "\n", "utf-8")
    with pytest.raises(SpecError) as caught:
        read_task(file)
    assert caught.value.line == 3
    assert message in str(caught.value)


def test_an_empty_or_missing_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n", "utf-8")
    with pytest.raises(SpecError, match="holds no question"):
        read_task(tmp_path / "empty.jsonl")
    with pytest.raises(SpecError, match="cannot be read"):
        read_task(tmp_path / "none.jsonl")


def test_the_hash_follows_the_questions(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    row = {"question": "1 + 1?", "answer": 2, "kind": "numeric"}
    file.write_text(json.dumps(row), "utf-8")
    before = read_task(file).hash
    file.write_text(json.dumps(row) + "\n", "utf-8")
    assert read_task(file).hash == before
    file.write_text(json.dumps({**row, "answer": 3}), "utf-8")
    assert read_task(file).hash != before
