"""`import autotune`: the same study from Python, and the example that shows it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import autotune
from autotune.events import Event, StudyFinished, StudyStarted, TrialFinished
from tests.desk import STUDY, Desk
from tests.e2e.conftest import Finished

EXAMPLE = Path(__file__).parents[2] / "examples" / "python_api.py"
SHORT = {"search.trials": 2, "confirm.rounds": 0}


class Heard:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def notify(self, event: Event) -> None:
        self.events.append(event)


def test_tune_and_read_agree(desk: Desk) -> None:
    path, heard = desk.write(), Heard()
    result = autotune.tune(path, SHORT, observer=heard)
    assert [record.outcome.kind for record in result.records] == ["measured", "measured"]
    assert isinstance(heard.events[0], StudyStarted) and isinstance(heard.events[-1], StudyFinished)
    assert [event.record for event in heard.events if isinstance(event, TrialFinished)] == list(result.records)
    study = autotune.load_study(path, SHORT)
    again = autotune.read(study)
    assert (again.records, again.recommendation, again.summary) == (
        result.records,
        result.recommendation,
        result.summary,
    )
    assert again.reason == result.reason == "2 of 2 trials are done"
    assert autotune.tune(study).records == result.records, "a finished study is not run again"


async def test_inside_an_event_loop(desk: Desk) -> None:
    path = desk.write()
    with pytest.raises(autotune.AutotuneError, match=r"await autotune\.tune_async"):
        autotune.tune(path)
    result = await autotune.tune_async(path, {**SHORT, "search.trials": 1})
    assert len(result.records) == 1
    assert result.recommendation is not None and not result.recommendation.proven


def test_wrong_input(desk: Desk) -> None:
    path = desk.write()
    with pytest.raises(autotune.SpecError, match="has no results"):
        autotune.read(path)
    with pytest.raises(autotune.SpecError, match=r"search\.trials"):
        autotune.load_study(path, {"search.trials": 0})
    with pytest.raises(autotune.AutotuneError, match=r"give them to load_study\(\)"):
        autotune.tune(autotune.load_study(path), SHORT)
    with pytest.raises(autotune.SpecError, match=r"missing\.yaml"):
        autotune.load_study("missing.yaml")


def test_a_study_that_has_not_ended(desk: Desk) -> None:
    study = autotune.load_study(desk.write("name: open\n" + STUDY.partition("\n")[2]))
    store = study.store()
    store.open(study.spec.model_dump_json(), "space")
    store.close()
    result = autotune.read(study)
    assert (result.records, result.recommendation, result.summary) == ((), None, ())
    assert result.reason == "the study has not ended"
    assert len(result.frame()) == len(result.front_frame()) == 0


def test_the_example(finished: Finished) -> None:
    """It finds the study finished and only reads it."""
    words = [sys.executable, str(EXAMPLE), str(finished.study)]
    done = subprocess.run(
        words, cwd=finished.desk.folder, env=finished.desk.environment(), capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert "output_throughput@last" in done.stdout
    assert any(line.startswith(("Recommended: ", "Keep what you run today")) for line in done.stdout.splitlines())


def test_every_name_is_there() -> None:
    assert [name for name in autotune.__all__ if not hasattr(autotune, name)] == []
    assert set(autotune.__all__) <= set(dir(autotune))
    with pytest.raises(AttributeError, match="no attribute 'tuna'"):
        getattr(autotune, "tuna")  # noqa: B009 - a typing error otherwise
