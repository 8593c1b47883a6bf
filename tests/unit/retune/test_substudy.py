"""The studies that re-tuning makes out of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.retune.ledger import Bin, Profile, Tuning
from autotune.retune.substudy import INPUT_FILE, baseline_of, canary_spec, retune_spec
from autotune.space.config import EngineConfig
from autotune.spec.load import load_study
from autotune.spec.resolved import resolved_yaml
from autotune.spec.retune import RetuneSpec
from autotune.spec.study import LengthSpec, StudySpec

PROFILE = Profile((Bin(0, 100, 10),), (Bin(0, 10, 10),), 500, rate=6.0)
INCUMBENT = EngineConfig.of({"max_num_seqs": 64, "dtype": "bfloat16"}, {"VLLM_X": "1"})


def study(**keys: object) -> StudySpec:
    given: dict[str, object] = {
        "name": "s", "model": "m/m", "engine": {"args": {"dtype": "bfloat16", "max_model_len": 4096}},
        "baseline": {"args": {"max_num_seqs": 8}}, "retune": {"budget": {"configurations": 5, "gpu_hours": 2}},
    }  # fmt: skip
    return StudySpec.model_validate({**given, **keys})


def tuning(*, moved: bool = False) -> Tuning:
    return Tuning("retune/0003", ("why",), (), PROFILE, 2, 0.0, moved=moved)


def made(spec: StudySpec, folder: Path, *, moved: bool = False) -> StudySpec:
    return retune_spec(spec, spec.retune or RetuneSpec(), tuning(moved=moved), INCUMBENT, folder, 1000)


def test_the_incumbent_is_the_baseline_exactly(tmp_path: Path) -> None:
    spec = made(study(), tmp_path / "0003")
    fixed = EngineConfig.of(dict(spec.engine.args))
    assert fixed.merged(dict(spec.baseline.args), spec.baseline.env) == INCUMBENT  # max_model_len was left out by it


def test_budgets_are_those_of_the_pass(tmp_path: Path) -> None:
    spec = made(study(), tmp_path / "0003")
    assert (spec.search.trials, spec.search.gpu_hours, spec.search.wall_clock) == (5, 2, 600)
    assert (spec.name, spec.storage, spec.retune) == ("s-retune-0003", str(tmp_path / "0003"), None)


def test_a_workload_that_moved_is_the_new_load(tmp_path: Path) -> None:
    open_loop = study(load={"arrivals": "poisson", "levels": [2, 4]})
    load = made(open_loop, tmp_path / "0003", moved=True).load
    assert isinstance(load.input_tokens, LengthSpec)
    assert load.input_tokens.file == str(tmp_path / "0003" / INPUT_FILE)
    assert load.levels == [3.0, 6.0]  # the highest one is what users do now
    assert made(open_loop, tmp_path / "0003").load == open_loop.load
    assert made(study(), tmp_path / "0003", moved=True).load.levels == study().load.levels  # closed loop


@pytest.mark.parametrize("moved", [False, True])
def test_its_file_reads_back(tmp_path: Path, moved: bool) -> None:
    spec = made(study(), tmp_path / "0003", moved=moved)
    file = tmp_path / "study.yaml"
    file.write_text(resolved_yaml(spec))
    assert load_study(file) == spec


def test_a_canary_checks_no_quality_and_keeps_the_load(tmp_path: Path) -> None:
    spec = canary_spec(study(), INCUMBENT, tmp_path / "canary-0001")
    assert (spec.quality.enabled, spec.load, spec.baseline) == (False, study().load, baseline_of(study(), INCUMBENT))
