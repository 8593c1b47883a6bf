"""A simulated study with a virtual clock is the same study whenever it is run with the same seed."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

import autotune
from autotune.outcome import Measured, TrialRecord
from tests.desk import RUN_S, STUDY, VIRTUAL, Desk

SEARCH = """
search: {trials: 12, sentinel_every: 8}
confirm: {rounds: 2, finalists: 1, minimise: false}
"""
NOISY = VIRTUAL[: VIRTUAL.index("search:")].replace("noise: 0%", "noise: 1%") + SEARCH
"""The default search, which reads what was measured and what it cost, and the proof after it."""
OF_THE_RUN = {"started_at", "folder", "environment", "samples"}
"""What may differ: the time of day, where the files are, and the host."""
TIMES = re.compile(r"^\d\d:\d\d:\d\d ", re.MULTILINE)


@dataclass(frozen=True)
class Ran:
    """What one run left behind."""

    records: list[object]
    output: str
    result: autotune.StudyResult
    requests: bytes


def without(value: object) -> object:
    """A record's values without those of the run."""
    if isinstance(value, dict):
        return {key: without(item) for key, item in value.items() if key not in OF_THE_RUN}
    return [without(item) for item in value] if isinstance(value, list) else value


def start(desk: Desk, folder: str, hashes: str) -> subprocess.Popen[str]:
    """The study in a folder of its own. `hashes` makes sets of words come in another order."""
    (desk.folder / folder).mkdir()
    desk.write(NOISY, f"{folder}/tiny.yaml")
    desk.variables["PYTHONHASHSEED"] = hashes
    return desk.start("run", f"{folder}/tiny.yaml", "--plain", "--seed", "7")


def ran(desk: Desk, folder: str, process: subprocess.Popen[str]) -> Ran:
    """What it left, once it has ended well."""
    output, errors = process.communicate(timeout=RUN_S)
    assert (process.returncode, errors) == (0, ""), output + errors
    result = desk.result(f"{folder}/tiny.yaml")
    rows = [np.load(path)["rows"].tobytes() for path in sorted((desk.folder / folder).glob("tiny/trial-*/*.npz"))]
    records = [without(TypeAdapter(TrialRecord).dump_python(record, mode="json")) for record in result.records]
    return Ran(records, TIMES.sub("", output).replace(f"{folder}/", ""), result, b"".join(rows))


def test_the_same_seed_is_the_same_study(desk: Desk) -> None:
    both = [(folder, start(desk, folder, hashes)) for folder, hashes in (("first", "1"), ("second", "2"))]
    first, second = (ran(desk, folder, process) for folder, process in both)
    origins = [record.proposal.origin for record in first.result.records]
    assert {"baseline", "sentinel", "confirm"} <= set(origins) and len(origins) >= 16
    live = [record for record in first.result.records if not record.restarted]
    assert live, "limits were changed on the running engine"
    assert all(isinstance(record.outcome, Measured) for record in first.result.records)

    assert second.records == first.records
    assert second.requests == first.requests, "every time of every request"
    assert second.result.confirmation == first.result.confirmation
    assert second.result.recommendation == first.result.recommendation
    assert second.output == first.output
    assert " of simulated time; all of it is in " in first.output

    desk.variables.clear()
    other = autotune.tune(desk.write(NOISY), {"search.seed": 8, "search.trials": 2, "confirm.rounds": 0})
    measured = [record.outcome for record in (*other.records[:1], *first.result.records[:1])]
    assert isinstance(measured[0], Measured) and isinstance(measured[1], Measured)
    assert measured[0].load.levels[0].metrics != measured[1].load.levels[0].metrics, "another seed, another noise"


def test_real_time_says_how_to_get_a_study_that_repeats(desk: Desk) -> None:
    desk.write(STUDY.replace("model: llama-3.1-8b", "model: unknown"))
    done = desk.run("run", "tiny.yaml", "--seed", "1")
    assert "--set engine.simulate.clock=virtual" in done.stderr


def test_what_is_finished_is_kept_and_the_study_goes_on(desk: Desk, tmp_path: Path) -> None:
    """Time of day goes on where the virtual one had come to, so that the account of seconds stays right."""
    path = desk.write()
    desk.write(VIRTUAL)
    short = {"search.trials": 2, "confirm.rounds": 0, "search.proposer": "random"}
    first = autotune.tune(path, short)
    more = autotune.tune(path, {**short, "search.trials": 3})
    assert more.records[: len(first.records)] == first.records
    ends = [record.started_at + record.seconds for record in more.records]
    begins = [record.started_at for record in more.records]
    assert all(end <= begin for end, begin in zip(ends, begins[1:], strict=False))
