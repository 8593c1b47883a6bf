"""Tier 2 by lm-eval on the real vLLM: two tasks without a network, paired with the baseline's answers.

Needs the extra `quality`; skipped where lm-eval is not installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autotune.engine.cpu_setup import CpuEngine
from autotune.engine.protocol import RunningEngine
from autotune.quality import lmeval
from autotune.quality.finalist import Finals, combined, finals_of
from autotune.quality.report import QualityCheck, QualityVerdict
from tests.engine.test_quality_real import damaged, engine, load_weights

__all__ = ["engine"]
pytestmark = [pytest.mark.real_engine, pytest.mark.slow]

TASKS = Path(__file__).parents[1] / "data" / "lm_eval"
QUESTIONS = 24


class Kept(dict[str, str]):
    """The baseline's answers."""

    def put(self, key: str, body: str) -> None:
        self[key] = body


@pytest.fixture
def finals(cpu_vllm: CpuEngine, monkeypatch: pytest.MonkeyPatch) -> Finals:
    if not lmeval.installed():
        pytest.skip("lm-eval is not installed: pip install '.[quality]'")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    tasks = ["capitals.yaml", "capitals_choice.yaml"]
    return finals_of(tasks, None, model=str(cpu_vllm.model), concurrency=4, beside=TASKS)


def told(checks: list[QualityCheck]) -> str:
    return "; ".join(f"{check.name} {check.verdict}: {check.note}" for check in checks)


async def test_tasks_are_paired_with_the_baselines_answers(
    finals: Finals, engine: RunningEngine, cpu_vllm: CpuEngine, tmp_path: Path
) -> None:
    kept = Kept()
    baseline = await finals.checks(engine, tmp_path / "baseline", kept, place="t", baseline=True)
    names = [check.name for check in baseline]
    assert names == ["task capitals", "task capitals_choice"], told(baseline)
    assert [check.estimate.n for check in baseline] == [QUESTIONS, QUESTIONS], told(baseline)
    right = [int(check.note.split()[0]) for check in baseline]
    assert all(count >= QUESTIONS // 2 for count in right), "this model knows most of these capitals"

    again = await finals.checks(engine, tmp_path / "again", kept, place="t", baseline=False)
    sys.stdout.write(told(again) + "\n")
    assert all(check.estimate.value < 0.1 for check in again), told(again)
    assert all(f"{QUESTIONS} questions" in check.note for check in again), "what so few questions can see is said"
    assert combined([], again) is QualityVerdict.PASSED

    await load_weights(engine, damaged(cpu_vllm, tmp_path, "noise", "5"))
    broken = await finals.checks(engine, tmp_path / "broken", kept, place="t", baseline=False)
    sys.stdout.write(told(broken) + "\n")
    assert broken[0].verdict is QualityVerdict.FAILED, told(broken)
    assert combined([], broken) is QualityVerdict.FAILED
