"""The gate over HTTP: a toy model behind vLLM's routes."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from autotune.errors import SpecError
from autotune.quality.gate import Gate, gate_for
from autotune.quality.reference import Reference
from autotune.quality.report import QualityReport, QualityVerdict
from autotune.space.config import EngineConfig
from autotune.spec.study import StudySpec
from autotune.testing.toy_scorer import ToyScorer
from autotune.testing.toy_server import serving

BASELINE = EngineConfig.of({"max_num_seqs": 64})
OTHER = EngineConfig.of({"max_num_seqs": 64, "kv_cache_dtype": "fp8"})


class Memory(dict[str, str]):
    """The study's documents."""

    def put(self, key: str, body: str) -> None:
        self[key] = body


def gate(memory: Memory | None = None, **quality: object) -> Gate:
    spec = StudySpec.model_validate(
        {"name": "toy", "model": "toy", "load": {"levels": [4]},
         "quality": {"documents": 4, "positions": 16, **quality}}
    )  # fmt: skip
    found = gate_for(spec, memory if memory is not None else Memory(), BASELINE)
    assert found is not None
    return found


async def compared(
    model: ToyScorer, folder: Path, reference: ToyScorer | None = None, **quality: object
) -> QualityReport:
    """The verdict on `model`, with another toy as the baseline."""
    judge = gate(**quality)
    async with serving(reference or ToyScorer()) as engine:
        assert (await judge.check(engine, BASELINE, folder)).verdict is QualityVerdict.PASSED
    async with serving(model) as engine:
        return await judge.check(engine, OTHER, folder)


def failed(report: QualityReport) -> set[str]:
    return {check.name for check in report.checks if check.verdict is QualityVerdict.FAILED}


async def test_the_same_engine_passes(tmp_path: Path) -> None:
    report = await compared(ToyScorer(), tmp_path)
    assert report.verdict is QualityVerdict.PASSED
    assert report.violation == 0
    assert {check.name for check in report.checks} >= {
        "tokenizer", "template", "finite", "token_count", "repetition", "json", "kl", "perplexity", "agreement",
        "worst_document", "kl[decode]",
    }  # fmt: skip


async def test_noise_of_repeats_becomes_the_floor_and_does_not_fail(tmp_path: Path) -> None:
    noisy = ToyScorer(noise=0.02)
    report = await compared(noisy, tmp_path, noisy)
    assert report.verdict is QualityVerdict.PASSED
    floor = {check.name: check.noise for check in report.checks}
    assert 0.0001 < floor["kl"] < 0.001
    assert 0 < floor["kl[decode]"] < 0.001


async def test_a_damaged_model_fails_in_tier_1_with_its_size(tmp_path: Path) -> None:
    report = await compared(ToyScorer(damage=0.8), tmp_path)
    assert report.verdict is QualityVerdict.FAILED
    assert failed(report) >= {"kl", "kl[decode]", "agreement"}
    assert report.violation > 5


async def test_more_texts_are_scored_where_the_first_ones_do_not_decide(tmp_path: Path) -> None:
    wide = await compared(ToyScorer(damage=0.12), tmp_path, kl_limit=0.008)
    clear = await compared(ToyScorer(damage=0.01), tmp_path, kl_limit=0.008)
    positions = {name: check.estimate.n for name, check in (("wide", wide.checks[5]), ("clear", clear.checks[5]))}
    assert {wide.checks[5].name, clear.checks[5].name} == {"kl"}
    assert positions == {"wide": 12 * 16, "clear": 4 * 16}


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (ToyScorer(offset=1), "tokenizer"),
        (ToyScorer(template="[user]"), "template"),
        (ToyScorer(broken=True), "finite"),
        (ToyScorer(short=1), "token_count"),
        (ToyScorer(json="cold, yes"), "json"),
        (ToyScorer(json=""), "json"),
    ],
)
async def test_plain_breakage_fails_in_tier_0(model: ToyScorer, name: str, tmp_path: Path) -> None:
    report = await compared(model, tmp_path)
    assert name in failed(report)
    assert all(check.tier == 0 for check in report.checks if check.name == name)
    assert report.violation >= 1


async def test_a_collapse_into_one_token_is_seen(tmp_path: Path) -> None:
    report = await compared(ToyScorer(stuck=5), tmp_path, positions=64)
    assert "repetition" in failed(report)


@pytest.mark.parametrize(("refused", "name"), [("score", "kl"), ("continue", "kl[decode]")])
async def test_a_path_that_the_engine_refuses_to_show_stays_open(refused: str, name: str, tmp_path: Path) -> None:
    report = await compared(ToyScorer(refuses=(refused,)), tmp_path)
    assert report.verdict is QualityVerdict.UNDECIDED
    open_checks = [check for check in report.checks if check.verdict is QualityVerdict.UNDECIDED]
    assert [check.name for check in open_checks] == [name]
    assert "is not supported" in open_checks[0].note
    damaged = await compared(ToyScorer(refuses=(refused,), damage=0.8), tmp_path)
    assert damaged.verdict is QualityVerdict.FAILED, "the other path still decides against it"


@pytest.mark.parametrize("refused", ["score", "continue"])
async def test_a_baseline_that_shows_one_path_only_is_compared_on_that_one(refused: str, tmp_path: Path) -> None:
    half = ToyScorer(refuses=(refused,))
    judge = gate()
    async with serving(half) as engine, serving(ToyScorer(damage=0.8)) as worse:
        assert (await judge.check(engine, BASELINE, tmp_path)).verdict is QualityVerdict.PASSED
        assert (await judge.check(worse, OTHER, tmp_path)).verdict is QualityVerdict.FAILED


async def test_one_precision_is_checked_once_also_after_a_restart(tmp_path: Path) -> None:
    memory = Memory()
    async with serving(ToyScorer()) as engine:
        await gate(memory).check(engine, BASELINE, tmp_path)
        first = await gate(memory).check(engine, OTHER, tmp_path)
        engine.requests.clear()
        again = await gate(memory).check(engine, OTHER.merged({"max_num_seqs": 2}), tmp_path)
        assert engine.requests == []
    assert (first.cached, again.cached) == (False, True)
    assert again.checks == first.checks
    assert first.precision_key == again.precision_key


async def test_other_limits_are_judged_again_on_the_same_reference(tmp_path: Path) -> None:
    memory = Memory()
    async with serving(ToyScorer()) as engine:
        await gate(memory).check(engine, BASELINE, tmp_path)
        await gate(memory, kl_limit=0.5).check(engine, BASELINE, tmp_path)
    assert sum(name.startswith("reference-") for name in memory) == 1
    assert sum(name.startswith("verdict-") for name in memory) == 2


async def test_without_a_reference_nothing_is_decided_nor_kept(tmp_path: Path) -> None:
    memory = Memory()
    async with serving(ToyScorer()) as engine:
        report = await gate(memory).check(engine, OTHER, tmp_path)
    assert report.verdict is QualityVerdict.UNDECIDED
    assert "no reference" in report.checks[0].note
    assert not memory


async def test_an_error_of_the_server_fails_but_is_not_remembered(tmp_path: Path) -> None:
    memory = Memory()
    async with serving(ToyScorer()) as engine:
        await gate(memory).check(engine, BASELINE, tmp_path)
    async with serving(ToyScorer(), status=500) as engine:
        report = await gate(memory).check(engine, OTHER, tmp_path)
    assert report.verdict is QualityVerdict.FAILED
    assert "500" in report.checks[0].note
    assert sum(name.startswith("verdict-") for name in memory) == 1


async def test_an_engine_that_died_is_not_the_gates_verdict(tmp_path: Path) -> None:
    judge = gate()
    async with serving(ToyScorer()) as engine:
        await judge.check(engine, BASELINE, tmp_path)
    report = await judge.check(engine, OTHER, tmp_path)
    assert report.verdict is QualityVerdict.UNDECIDED
    assert report.checks[0].name == "answers"


async def test_a_reference_file_of_an_earlier_study_is_used(tmp_path: Path) -> None:
    async with serving(ToyScorer()) as engine:
        await gate().check(engine, BASELINE, tmp_path)
    spec = StudySpec.model_validate(
        {
            "name": "next",
            "model": "toy",
            "quality": {"documents": 4, "positions": 16, "reference": "quality-reference.json"},
        }
    )
    judge = gate_for(spec, Memory(), BASELINE, beside=tmp_path)
    assert judge is not None
    async with serving(ToyScorer(damage=0.8)) as engine:
        assert (await judge.check(engine, BASELINE, tmp_path)).verdict is QualityVerdict.FAILED


async def test_a_reference_may_come_from_another_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_REFERENCE_API_KEY", "secret")
    async with serving(ToyScorer()) as today, serving(ToyScorer()) as same, serving(ToyScorer(damage=0.8)) as worse:
        judge = gate(reference=today.url)
        assert (await judge.check(worse, BASELINE, tmp_path)).verdict is QualityVerdict.FAILED
        assert (await judge.check(same, OTHER, tmp_path)).verdict is QualityVerdict.PASSED
        assert today.requests


def test_a_missing_reference_file_is_a_mistake_in_the_study(tmp_path: Path) -> None:
    spec = StudySpec.model_validate({"name": "n", "model": "toy", "quality": {"reference": "none.json"}})
    with pytest.raises(SpecError, match=r"none\.json: quality\.reference: cannot be read"):
        gate_for(spec, Memory(), BASELINE, beside=tmp_path)


def test_a_damaged_reference_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"format": 1}', "utf-8")
    spec = StudySpec.model_validate({"name": "n", "model": "toy", "quality": {"reference": "bad.json"}})
    with pytest.raises(SpecError, match="is no quality reference"):
        gate_for(spec, Memory(), BASELINE, beside=tmp_path)


def test_a_gate_that_is_off_is_none() -> None:
    spec = StudySpec.model_validate({"name": "n", "model": "toy", "quality": {"enabled": False}})
    assert gate_for(spec, Memory(), BASELINE) is None


async def test_a_reference_survives_its_file(tmp_path: Path) -> None:
    async with serving(ToyScorer()) as engine:
        await gate().check(engine, BASELINE, tmp_path)
    text = (tmp_path / "quality-reference.json").read_text("utf-8")
    reference = Reference.from_json(text)
    assert reference.to_json() == text
    assert len(reference.windows) == 12
    assert math.isclose(float(reference.windows[0].scored.target[0]), float(reference.windows[0].scored.target[0]))


async def test_parallel_benches_record_one_reference(tmp_path: Path) -> None:
    memory = Memory()
    judge = gate(memory)
    async with serving(ToyScorer()) as engine:
        await asyncio.gather(*(judge.check(engine, BASELINE, tmp_path) for _ in range(3)))
    assert sum(name.startswith("reference-") for name in memory) == 1
