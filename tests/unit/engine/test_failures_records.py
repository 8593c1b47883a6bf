"""Every public failure and every complete log is classified right, or honestly not at all.

The confusion table: ``python tests/unit/engine/test_failures_records.py``.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.engine.failures import Failure, FailureClass, FailureContext, Watcher, classify, read_log
from autotune.engine.stages import Stage

DATA = Path(__file__).parents[2] / "data"
RECORDS = DATA / "failures" / "failures.jsonl"
LOGS = DATA / "failures" / "logs"

# What an operator knows of the engine's stage, in this project's words.
STAGES = {
    "cli": Stage.CLI,
    "config": Stage.CONFIG,
    "init": Stage.INIT,
    "load": Stage.WEIGHTS,
    "profile": Stage.PROFILING,
    "compile": Stage.COMPILE,
    "kv_init": Stage.KV_CACHE,
    "capture": Stage.GRAPHS,
    "warmup": Stage.WARMUP,
    "bind": Stage.SERVER,
    "serve": Stage.SERVING,
    "any": None,
}
ACTIONS = {"retry": "retry_once", "find_root": "retry_once"}
# The report of F102 gives the wall time; its line is the same as that of F100, which has another cause.
CONTEXTS = {"F102": FailureContext(elapsed_s=599.0)}

EXPECTED_UNKNOWN = {"records": 0, "records without a stage": 1, "logs": 1}
"""Unknown is honest, but must not grow unseen."""


@dataclass(frozen=True)
class Case:
    name: str
    lines: list[str]
    stage: Stage | None
    expected: tuple[str, str, str]
    context: FailureContext

    def classify(self, *, with_stage: bool) -> Failure:
        return classify(self.lines, phase=self.stage if with_stage else None, context=self.context)


def records() -> list[Case]:
    rows = [json.loads(line) for line in RECORDS.read_text(encoding="utf-8").splitlines()]
    return [
        Case(
            row["id"],
            row["lines"],
            STAGES[row["phase"]],
            (row["class"], row["cause"], ACTIONS.get(row["study_action"], row["study_action"])),
            CONTEXTS.get(row["id"], FailureContext()),
        )
        for row in rows
    ]


def logs() -> list[tuple[Path, tuple[str, str, str]]]:
    expected = tomllib.loads((DATA / "failures" / "expected_logs.toml").read_text(encoding="utf-8"))
    return [(LOGS / f"{name}.log", tuple(answer)) for name, answer in expected.items()]


def harmless() -> list[tuple[str, list[str]]]:
    rows = [json.loads(line) for line in (DATA / "failures" / "not_failures.jsonl").read_text("utf-8").splitlines()]
    return [(row["id"], row["lines"]) for row in rows]


def answer(failure: Failure) -> tuple[str, str, str]:
    return (failure.failure_class.value, failure.cause.value, failure.action.value)


def grade(expected: tuple[str, str, str], failure: Failure) -> str:
    """An out-of-memory without its stage counts as unknown: its advice would depend on the stage."""
    vague = failure.failure_class in (FailureClass.UNKNOWN, FailureClass.OOM) and answer(failure) != expected
    if failure.failure_class is FailureClass.UNKNOWN or vague:
        return "unknown"
    return "right" if answer(failure) == expected else "wrong"


def confusion() -> dict[str, Counter[str]]:
    return {
        "records": Counter(grade(case.expected, case.classify(with_stage=True)) for case in records()),
        "records without a stage": Counter(grade(case.expected, case.classify(with_stage=False)) for case in records()),
        "logs": Counter(grade(expected, classify(path)) for path, expected in logs()),
        "no failures": Counter("wrong" if classify(lines).found else "right" for _, lines in harmless()),
    }


@pytest.mark.parametrize("case", records(), ids=lambda case: case.name)
def test_a_public_failure_gets_its_class_cause_and_action(case: Case) -> None:
    assert answer(case.classify(with_stage=True)) == case.expected


@pytest.mark.parametrize("case", records(), ids=lambda case: case.name)
def test_without_a_stage_a_failure_is_right_or_honestly_vague(case: Case) -> None:
    assert grade(case.expected, case.classify(with_stage=False)) != "wrong"


@pytest.mark.parametrize(("path", "expected"), logs(), ids=lambda value: getattr(value, "stem", None))
def test_a_complete_log_gets_its_class_cause_and_action(path: Path, expected: tuple[str, str, str]) -> None:
    assert answer(classify(path)) == expected


def test_every_log_has_an_expectation() -> None:
    assert {path.name for path, _ in logs()} == {path.name for path in LOGS.glob("*.log")}


@pytest.mark.parametrize(("name", "lines"), harmless(), ids=lambda value: value if isinstance(value, str) else None)
def test_a_line_that_looks_like_a_failure_is_none(name: str, lines: list[str]) -> None:
    watcher = Watcher()
    verdicts = [watcher.feed(line) for line in lines]
    assert classify(lines).failure_class is FailureClass.NO_FAILURE, name
    assert verdicts == [None] * len(lines)
    assert watcher.settle() is None


def test_harmless_lines_change_no_verdict() -> None:
    noise = [line for _, lines in harmless() for line in lines]
    for case in records():
        assert answer(classify(noise + case.lines + noise, phase=case.stage, context=case.context)) == case.expected


def test_the_number_of_unknown_is_what_it_was() -> None:
    table = confusion()
    assert {name: table[name]["unknown"] for name in EXPECTED_UNKNOWN} == EXPECTED_UNKNOWN
    assert sum(counts["wrong"] for counts in table.values()) == 0


def test_every_failure_says_what_to_do_and_shows_its_lines() -> None:
    for case in records():
        failure = case.classify(with_stage=True)
        assert failure.lines and failure.advice, case.name
        assert all("{" not in item.text for item in failure.advice), case.name


@pytest.mark.parametrize("path", sorted((DATA / "startlogs").glob("*.log")), ids=lambda path: path.stem)
def test_a_healthy_start_is_no_failure_and_is_never_stopped(path: Path) -> None:
    watcher = Watcher()
    assert [verdict for raw in read_log(path) if (verdict := watcher.feed(raw))] == []
    assert watcher.settle() is None
    assert classify(path).failure_class is FailureClass.NO_FAILURE


if __name__ == "__main__":
    print(f"{'':24} {'right':>6} {'unknown':>8} {'wrong':>6}")
    for label, counts in confusion().items():
        print(f"{label:24} {counts['right']:>6} {counts['unknown']:>8} {counts['wrong']:>6}")
