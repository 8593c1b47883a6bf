"""Which configuration is exported, and with which evidence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import SpecError
from autotune.export.evidence import comment
from autotune.export.pick import read_export
from autotune.load.report import Estimate, LoadReport
from autotune.outcome import Measured
from autotune.study import Study
from tests.other_vllm import other_vllm


@pytest.mark.parametrize(
    ("pick", "seqs"),
    [("recommendation", 384), ("best-throughput", 384), ("lowest-ttft", 64), ("knee", 128), ("trial:2", 512)],
)
def test_picks(study: Study, pick: str, seqs: int) -> None:
    assert read_export(study, pick).config.get("max_num_seqs") == seqs


def test_the_recommendation_brings_its_proof(study: Study) -> None:
    found = read_export(study)
    assert found.evidence.gains == (("output_throughput@last", 1.3, 1.27, 1.33),)
    assert found.evidence.trials == (1,)
    assert found.evidence.quality == "quality gate passed"
    assert found.evidence.hardware == "1 x NVIDIA H100, driver 570.1"
    assert found.ready_s == 95.0
    assert not found.evidence.simulated
    assert not found.evidence.warnings


def test_figures_are_those_of_the_fresh_starts_and_each_change_has_its_effect(study: Study) -> None:
    """What was measured while searching chose the configuration, so it is too good on average."""
    assert read_export(study).evidence.starts == 0 and "of the search" in comment(read_export(study))
    store = study.store()
    found = next(one for one in store.history() if one.number == 1)
    assert isinstance(found.outcome, Measured)
    for number, factor in ((6, 0.8), (7, 0.9)):
        levels = tuple(
            replace(level, metrics=tuple((key, Estimate(factor * one.value, factor * one.low, factor * one.high, one.n))
                                         for key, one in level.metrics))
            for level in found.outcome.load.levels
        )  # fmt: skip
        proposal = replace(found.proposal, origin="confirm")
        store.begin(number, 1, proposal)
        store.add(replace(found, number=number, proposal=proposal, outcome=Measured(LoadReport(levels))))
    store.close()
    export = read_export(study)
    throughput = next(m for m in export.evidence.measures if m.key == "output_throughput" and m.level.value == 64)
    assert throughput.estimate.value == pytest.approx(5200 * (0.8 * 0.9) ** 0.5)
    assert throughput.estimate.low == pytest.approx(0.98 * 0.8 * 5200)
    text = comment(export)
    assert "geometric means of 2 fresh starts" in text
    assert "# Worth of max_num_seqs: x1.300 [1.250, 1.350] in output_throughput@last over 2 rounds" in text


def test_a_pick_by_number_brings_the_gates_figures(study: Study) -> None:
    found = read_export(study, "trial:3").evidence.quality
    assert found == (
        "not decided (kl straddle their limits): "
        "KL 0.019 (0.017 to 0.022) nats per token while reading, limit 0.02, noise 0.0002"
    )


def test_what_was_not_proven_says_so(study: Study) -> None:
    assert "not confirmed" in read_export(study, "best-throughput").evidence.claim
    assert "does not hold" in read_export(study, "trial:2").evidence.warnings[0]
    assert "does not fit" in read_export(study, "trial:5").evidence.warnings[0]


def test_secrets_of_the_study_stay_references(study: Study) -> None:
    assert dict(read_export(study).config.env) == {"HF_TOKEN": "${HF_TOKEN}"}


def test_files_are_written_for_the_vllm_of_the_study(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_STATE", str(tmp_path / "state"))
    engine = study.spec.engine.model_copy(update={"kind": "vllm", "python": str(other_vllm(tmp_path))})
    asked = replace(study, spec=study.spec.model_copy(update={"engine": engine}))
    assert read_export(asked).table.version == "0.26.0"
    assert read_export(asked, version="0.31.0").table.version == "0.32.0"


def test_another_version_is_named(study: Study) -> None:
    found = read_export(study, "trial:0", "0.27.1")
    assert any("measure again" in note for note in found.notes)


@pytest.mark.parametrize("study", ["simulated"], indirect=True)
def test_a_simulated_study_says_so(study: Study) -> None:
    assert read_export(study).evidence.simulated


@pytest.mark.parametrize(
    ("pick", "message"),
    [("trial:99", "no trial 99"), ("best", "unknown"), ("trial:x", "unknown")],
)
def test_a_wrong_pick_says_what_is_there(study: Study, pick: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        read_export(study, pick)
    assert caught.value.hint
