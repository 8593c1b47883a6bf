"""What the real tuner reads and leaves behind; its engines are tried in tests/e2e and tests/engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from autotune.events import Silent
from autotune.outcome import Infeasible, TrialRecord
from autotune.result import Recommendation
from autotune.retune.driver import StudyTuner
from autotune.retune.ledger import Tuning
from autotune.retune.observe import profile_of
from autotune.retune.substudy import retune_name
from autotune.retune.triggers import fingerprint_finding, mean_length, population_stability
from autotune.retune.tuner import CanaryResult, GiveWay
from autotune.space.config import EngineConfig
from autotune.spec.retune import RetuneSpec
from autotune.spec.study import LoadSpec
from autotune.store import Store
from autotune.study import Study, open_study
from autotune.testing.history import made_up_history

STUDY = """\
name: s
model: llama-3.1-8b
engine: {kind: simulated}
space: {parameters: {max_num_seqs: {ladder: [32, 64]}}}
load: {levels: [16]}
"""


@pytest.fixture
def study(tmp_path: Path) -> Study:
    (tmp_path / "s.yaml").write_text(STUDY)
    made = open_study(tmp_path / "s.yaml")
    _keep(made.store(), made, made_up_history(12))
    return made


def _keep(store: Store, study: Study, records: Sequence[TrialRecord]) -> None:
    store.open(study.spec.model_dump_json(), "")
    for record in records:
        store.add(record)
    store.close()


def tuner(study: Study) -> StudyTuner:
    return StudyTuner(study, RetuneSpec(), lambda parts: Silent())


def retuned(study: Study, number: int, records: Sequence[TrialRecord]) -> Path:
    folder = study.folder / "retune" / f"{number:04d}"
    folder.mkdir(parents=True)
    (folder / "study.yaml").write_text(STUDY)
    store = Store.at(folder, retune_name(study.spec, folder))
    _keep(store, study, records)
    return folder


def test_the_front_comes_from_the_last_re_tuning_that_measured(study: Study) -> None:
    """One that was given up at once, or whose incumbent could not serve, gives nothing to try first."""
    one = tuner(study)
    folders = study.folder / "retune"
    assert one.warm_start(folders / "0001") == study.path
    measured = retuned(study, 1, made_up_history(12))
    refused = made_up_history(12)[0]
    retuned(study, 2, [replace(refused, outcome=Infeasible("illegal_combination", "it cannot serve", 1.0))])
    retuned(study, 3, [])
    assert one.warm_start(folders / "0004") == measured / "study.yaml"
    assert one.warm_start(folders / "0001") == study.path


def test_a_study_file_that_was_edited_since_it_ran_is_noticed_at_the_first_pass(study: Study) -> None:
    _recommend(study)
    known = asyncio.run(tuner(study).adopt()).fingerprint
    same = asyncio.run(tuner(study).look(None)).fingerprint
    assert not fingerprint_finding(known, same).fired
    edited = open_study(study.path, ["load.levels=[32]"])
    sentence = fingerprint_finding(asyncio.run(tuner(edited).adopt()).fingerprint, same).sentence
    assert "`load`" not in sentence  # what ran is what is known, not what is in the file now
    now = asyncio.run(tuner(edited).look(None)).fingerprint
    assert fingerprint_finding(known, now).sentence == "`load` of the study file has changed"


def _recommend(study: Study) -> None:
    store = study.store()
    made = Recommendation(EngineConfig(), EngineConfig(), 0, False, "nothing better")
    store.put("recommendation", "final", TypeAdapter(Recommendation).dump_json(made).decode())
    store.close()


@pytest.mark.parametrize("end", [GiveWay("the window closes"), asyncio.CancelledError()])
async def test_a_canary_that_ends_early_leaves_no_folder(
    study: Study, end: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def measured(self: StudyTuner, folder: Path, incumbent: EngineConfig, seconds: float) -> CanaryResult:
        folder.mkdir(parents=True)
        raise end

    monkeypatch.setattr(StudyTuner, "_measured_canary", measured)
    (study.folder / "retune/canary-0003").mkdir(parents=True)  # of a pass that was killed
    with pytest.raises(type(end)):
        await tuner(study).canary(EngineConfig(), 7, 60.0)
    assert list((study.folder / "retune").iterdir()) == []


def test_lengths_of_users_are_the_profile_and_a_law_is_none(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("\n".join(str(100 + 10 * n) for n in range(100)))
    (tmp_path / "out.txt").write_text("7\n")
    files = {
        f"{side}put_tokens": {"kind": "empirical", "file": str(tmp_path / f"{side}.txt")} for side in ("in", "out")
    }
    found = profile_of(LoadSpec.model_validate(files))
    assert found is not None
    assert mean_length(found.inputs) == pytest.approx(595, rel=0.02)
    assert (found.outputs[0].low, found.outputs[0].high, found.outputs[0].count) == (6, 7, found.requests)
    again = profile_of(LoadSpec.model_validate({**files, "seed": 2}))
    assert again is not None and population_stability(found.inputs, again.inputs) < 0.02
    assert profile_of(LoadSpec.model_validate({"input_tokens": 256, "output_tokens": files["output_tokens"]})) is None
    assert profile_of(LoadSpec()) is None


def test_a_tuning_that_never_began_has_cost_nothing(study: Study) -> None:
    assert tuner(study).spent(Tuning(str(study.folder / "retune/0001"), (), (), None, 1, 0.0)) == 0.0
