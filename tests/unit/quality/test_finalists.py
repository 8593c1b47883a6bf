"""Tiers 2 and 3: questions, lm-eval, the user's command."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import SpecError
from autotune.quality import lmeval
from autotune.quality.finalist import finals_of, task_check
from autotune.quality.gate import Gate, gate_for
from autotune.quality.report import QualityCheck, QualityReport
from autotune.space.config import EngineConfig
from autotune.spec.study import StudySpec
from autotune.testing.toy_scorer import ToyScorer
from autotune.testing.toy_server import serving

BASELINE = EngineConfig.of({})
OTHER = EngineConfig.of({"quantization": "fp8"})


class Memory(dict[str, str]):
    def put(self, key: str, body: str) -> None:
        self[key] = body


def gate(folder: Path, memory: Memory, **quality: object) -> Gate:
    spec = StudySpec.model_validate(
        {"name": "toy", "model": "toy", "load": {"levels": [4]},
         "quality": {"documents": 4, "positions": 16, **quality}}
    )  # fmt: skip
    found = gate_for(spec, memory, BASELINE, beside=folder)
    assert found is not None
    return found


def questions(folder: Path, count: int = 400) -> str:
    rows = [
        {"question": f"What is {n} + {n * n % 97} ?", "answer": n + n * n % 97, "kind": "numeric"} for n in range(count)
    ]
    (folder / "sums.jsonl").write_text("\n".join(json.dumps(row) for row in rows), "utf-8")
    return "sums.jsonl"


async def finalist(folder: Path, model: ToyScorer, **quality: object) -> QualityReport:
    judge = gate(folder, Memory(), **quality)
    async with serving(ToyScorer()) as engine:
        await judge.check_finalist(engine, BASELINE, folder)
    async with serving(model) as engine:
        return await judge.check_finalist(engine, OTHER, folder)


def last(report: QualityReport) -> QualityCheck:
    return report.checks[-1]


async def test_equal_answers_pass_and_the_power_is_told(tmp_path: Path) -> None:
    report = await finalist(tmp_path, ToyScorer(), tasks=[questions(tmp_path)])
    assert report.verdict == "passed"
    assert last(report).tier == 2
    assert last(report).name == "task sums"
    assert "400 of 400 right before, 400 now" in last(report).note
    assert "can see a fall of" in last(report).note


async def test_wrong_answers_fail_though_the_distributions_agree(tmp_path: Path) -> None:
    report = await finalist(tmp_path, ToyScorer(wrong=0.1), tasks=[questions(tmp_path)])
    assert report.verdict == "failed"
    assert last(report).estimate.value == pytest.approx(0.1, abs=0.05)
    assert report.violation >= 1


async def test_a_candidate_before_the_baseline_is_undecided_and_not_kept(tmp_path: Path) -> None:
    memory = Memory()
    judge = gate(tmp_path, memory, tasks=[questions(tmp_path, 20)])
    async with serving(ToyScorer()) as engine:
        await judge.check(engine, BASELINE, tmp_path)
        report = await judge.check_finalist(engine, OTHER, tmp_path)
    assert report.verdict == "undecided"
    assert "baseline" in last(report).note
    assert not [name for name in memory if name.startswith("finalist-")]


async def test_a_finalist_is_asked_once(tmp_path: Path) -> None:
    memory = Memory()
    judge = gate(tmp_path, memory, tasks=[questions(tmp_path, 20)])
    async with serving(ToyScorer()) as engine:
        await judge.check_finalist(engine, BASELINE, tmp_path)
        engine.requests.clear()
        assert (await judge.check_finalist(engine, BASELINE, tmp_path)).cached
        assert engine.requests == []


async def test_what_fails_before_is_not_asked(tmp_path: Path) -> None:
    report = await finalist(tmp_path, ToyScorer(damage=0.8), tasks=[questions(tmp_path, 20)])
    assert report.verdict == "failed"
    assert all(check.tier < 2 for check in report.checks)


async def test_a_command_gets_the_engine_and_its_exit_code_decides(tmp_path: Path) -> None:
    script = "import os, sys; print(os.environ['AUTOTUNE_MODEL'], os.environ['AUTOTUNE_API_KEY']); sys.exit({})"
    good = await finalist(tmp_path, ToyScorer(), command=[sys.executable, "-c", script.format(0)])
    assert good.verdict == "passed"
    assert last(good).tier == 3
    bad = await finalist(tmp_path, ToyScorer(), command=[sys.executable, "-c", script.format(3)])
    assert bad.verdict == "failed"
    assert "exit code 3" in last(bad).note
    assert "toy ***" in last(bad).note, "the key is masked"


async def test_a_command_that_cannot_be_started_decides_nothing(tmp_path: Path) -> None:
    report = await finalist(tmp_path, ToyScorer(), command=["/nonexistent/check"])
    assert report.verdict == "undecided"
    assert "cannot be started" in last(report).note


def test_too_few_questions_are_undecided() -> None:
    before = {str(n): True for n in range(30)}
    check = task_check("t", before, {**before, "3": False})
    assert check.verdict == "undecided"
    assert check.estimate.value == pytest.approx(1 / 30)


def test_only_questions_that_both_answered_count() -> None:
    check = task_check("t", {"a": True, "b": True}, {"b": True, "c": False})
    assert check.estimate.n == 1
    assert task_check("t", {"a": True}, {"b": True}).verdict == "undecided"


async def test_few_questions_do_not_block_what_the_distributions_pass(tmp_path: Path) -> None:
    """One of 60 lost: within the margin, though a larger fall is not excluded."""
    rows = [{"question": f"What is {n} + 1 ?", "answer": n + 1 + (n == 7), "kind": "numeric"} for n in range(60)]
    (tmp_path / "few.jsonl").write_text("\n".join(json.dumps(row) for row in rows), "utf-8")
    memory = Memory()
    judge = gate(tmp_path, memory, tasks=["few.jsonl"])
    async with serving(ToyScorer()) as engine:
        await judge.check_finalist(engine, BASELINE, tmp_path)
        name = next(name for name in memory if "-answers-" in name)
        memory[name] = json.dumps({**json.loads(memory[name]), "7": True})
        report = await judge.check_finalist(engine, OTHER, tmp_path)
    assert last(report).verdict == "undecided"
    assert report.verdict == "passed"


def test_lm_evals_samples_are_read_with_the_better_filter(tmp_path: Path) -> None:
    rows = [
        {"doc_id": 0, "filter": "strict-match", "exact_match": 0.0},
        {"doc_id": 0, "filter": "flexible-extract", "exact_match": 1.0},
        {"doc_id": 1, "filter": "flexible-extract", "exact_match": 0.0},
        {"doc_id": 1, "filter": "strict-match", "exact_match": 1.0},
    ]
    file = tmp_path / "m" / "samples_gsm8k_2026-01-01T00-00-00.000000.jsonl"
    file.parent.mkdir()
    file.write_text("\n".join(json.dumps(row) for row in rows), "utf-8")
    assert lmeval.read_samples([file]) == {"gsm8k/0": True, "gsm8k/1": False}


@pytest.mark.parametrize("content", ["{", '{"doc_id": 1}', "[]"])
def test_damaged_samples_are_a_fault(content: str, tmp_path: Path) -> None:
    file = tmp_path / "samples_x_1.jsonl"
    file.write_text(content, "utf-8")
    with pytest.raises(lmeval.LmEvalFault, match="samples_x_1"):
        lmeval.read_samples([file])


FAKE_LM_EVAL = """
import json, os, pathlib, sys
assert os.environ["OPENAI_API_KEY"] == "secret"
assert "secret" not in " ".join(sys.argv)
folder = pathlib.Path(sys.argv[sys.argv.index("--output_path") + 1]) / "toy"
folder.mkdir(parents=True)
rows = [{"doc_id": n, "filter": "none", "acc": float(n % 4 > 0)} for n in range(8)]
(folder / "samples_arc_easy_2026.jsonl").write_text("\\n".join(json.dumps(row) for row in rows))
"""


async def test_lm_eval_runs_as_a_command_with_the_key_in_the_environment(tmp_path: Path) -> None:
    package = tmp_path / "lm_eval"
    package.mkdir()
    (package / "__main__.py").write_text(FAKE_LM_EVAL, "utf-8")
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n', "utf-8")
    wrapper.chmod(0o755)
    found = await lmeval.evaluate(
        "arc_easy", url="http://127.0.0.1:1", model="toy", api_key="secret", tokenizer="/m", concurrency=2,
        folder=tmp_path, python=str(wrapper),
    )  # fmt: skip
    assert len(found) == 8
    assert sum(found.values()) == 6


async def test_a_task_file_finds_its_data_beside_it_and_old_answers_do_not_count(tmp_path: Path) -> None:
    """lm-eval looks for data files where it runs, and the folder may hold what an engine before answered."""
    own = tmp_path / "tasks"
    own.mkdir()
    (own / "sums.yaml").write_text("task: sums\n", "utf-8")
    stale = tmp_path / "lm-eval-sums" / "toy" / "samples_sums_2020.jsonl"
    stale.parent.mkdir(parents=True)
    stale.write_text('{"doc_id": 0, "filter": "none", "acc": 1.0}\n{"doc_id": 99, "acc": 1.0}\n', "utf-8")
    package = tmp_path / "lm_eval"
    package.mkdir()
    where = "import os, sys; assert os.getcwd() == os.path.dirname(sys.argv[sys.argv.index('--tasks') + 1])\n"
    fake = FAKE_LM_EVAL.replace("samples_arc_easy_2026", "samples_sums_2026")
    (package / "__main__.py").write_text(where + fake, "utf-8")
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n', "utf-8")
    wrapper.chmod(0o755)
    found = await lmeval.evaluate(
        str(own / "sums.yaml"), url="u", model="m", api_key="secret", tokenizer="", concurrency=1,
        folder=Path(os.path.relpath(tmp_path)), python=str(wrapper),
    )  # fmt: skip
    assert sorted(found) == [f"sums/{n}" for n in range(8)]
    assert not found["sums/0"]


def test_a_task_that_the_baseline_fails_proves_nothing() -> None:
    """A wrong pattern reads no answer as right; without right answers none can be lost."""
    wrong = {str(index): False for index in range(2000)}
    check = task_check("t", wrong, wrong)
    assert check.verdict == "undecided"
    assert "look at the task" in check.note
    able = {**wrong, **{str(index): True for index in range(100)}}
    assert task_check("t", able, able).verdict == "passed"


async def test_a_tokenizer_that_cannot_be_loaded_does_not_stop_a_task_that_needs_none(tmp_path: Path) -> None:
    package = tmp_path / "lm_eval"
    package.mkdir()
    refuse = "import sys\nif 'tokenizer=no/where' in ' '.join(sys.argv): sys.exit('cannot load no/where')\n"
    (package / "__main__.py").write_text(refuse + FAKE_LM_EVAL, "utf-8")
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n', "utf-8")
    wrapper.chmod(0o755)
    found = await lmeval.evaluate(
        "arc_easy", url="u", model="m", api_key="secret", tokenizer="no/where", concurrency=1, folder=tmp_path,
        python=str(wrapper),
    )  # fmt: skip
    assert len(found) == 8
    assert "cannot load" in (tmp_path / "lm-eval-arc_easy.log").read_text("utf-8")


def test_a_task_file_that_changes_is_another_task(tmp_path: Path) -> None:
    task, data = tmp_path / "sums.yaml", tmp_path / "sums.jsonl"
    task.write_text("task: sums\ndata: sums.jsonl\n", "utf-8")
    data.write_text("{}", "utf-8")
    first = lmeval.identity(str(task))
    data.write_text("{ }", "utf-8")
    assert lmeval.identity(str(task)) != first
    (tmp_path / "unrelated").write_text("x", "utf-8")
    data.write_text("{}", "utf-8")
    assert lmeval.identity(str(task)) == first
    assert lmeval.identity("gsm8k") == "gsm8k"


def test_a_task_file_that_is_missing_is_a_mistake_in_the_study(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.yaml: quality\.tasks: there is no such lm-eval task file"):
        finals_of(["none.yaml"], None, model="m", concurrency=1, beside=tmp_path)


async def test_a_failed_lm_eval_is_told_with_its_last_words(tmp_path: Path) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text("#!/bin/sh\necho 'no such task: arc_hard'\nexit 2\n", "utf-8")
    wrapper.chmod(0o755)
    with pytest.raises(lmeval.LmEvalFault, match=r"ended with 2: no such task: arc_hard .*lm-eval-arc_hard\.log"):
        await lmeval.evaluate(
            "arc_hard", url="u", model="m", api_key="", tokenizer="t", concurrency=1, folder=tmp_path,
            python=str(wrapper),
        )  # fmt: skip


def test_lm_eval_that_is_not_installed_is_a_mistake_in_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmeval, "installed", lambda: False)
    with pytest.raises(SpecError, match="lm-eval is not installed"):
        gate(tmp_path, Memory(), tasks=["gsm8k"])


async def test_a_gate_without_finals_answers_as_before(tmp_path: Path) -> None:
    judge = gate(tmp_path, Memory())
    async with serving(ToyScorer()) as engine:
        first = await judge.check(engine, BASELINE, tmp_path)
        assert await judge.check_finalist(engine, BASELINE, tmp_path) == replace(first, cached=True, seconds=0.0)
