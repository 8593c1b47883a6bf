"""A whole study from the command line, and every command that reads what it found."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import autotune
from autotune.outcome import Infeasible, Measured
from tests.desk import VIRTUAL, Desk, events
from tests.e2e.conftest import Finished

SEARCH_ONLY = ["--set", "confirm.rounds=0"]


def test_a_study_ends_with_a_recommendation(finished: Finished) -> None:
    assert re.search(r"^(Recommended: |Keep what you run today)", finished.output, re.MULTILINE)
    assert "simulated: these figures are no measurements of a GPU" in finished.output
    assert re.search(r"^  vllm serve llama-3.1-8b", finished.output, re.MULTILINE)
    assert re.search(r"^  \S*autotune export tiny.yaml$", finished.output, re.MULTILINE), "to be copied"


def test_plain_lines_where_there_is_no_terminal(finished: Finished) -> None:
    assert "\x1b" not in finished.output
    lines = finished.output.splitlines()
    head = next(number for number, line in enumerate(lines) if "study tiny: 0 trials" in line)
    assert "virtual clock" in lines[head + 1]
    assert re.fullmatch(r"\d\d:\d\d:\d\d trial 0 \(baseline\): as the baseline", lines[head + 2])
    assert sum("measured in" in line for line in lines) == 9, "5 of the search and 2 rounds of 2"
    assert "…" not in finished.output, "nothing may be cut off"


def test_the_result_from_python(finished: Finished) -> None:
    result = autotune.read(finished.study)
    assert [record.number for record in result.records] == list(range(9))
    assert [record.proposal.origin for record in result.records].count("confirm") == 4
    assert all(isinstance(record.outcome, Measured) for record in result.records)
    assert result.reason == "5 of 5 trials are done"
    assert result.confirmation is not None and result.confirmation.rounds == 2
    assert result.recommendation is not None
    assert all(sentence in finished.output for sentence in result.summary)
    front = result.front_frame()
    assert {"trial", "output_throughput@last", "ttft_p90_ms@last"} <= set(front.columns)
    assert len(result.frame()) == 9


def test_every_trial_keeps_its_log_and_requests(finished: Finished) -> None:
    for record in autotune.read(finished.study).records:
        assert record.folder is not None
        if record.restarted:
            log = (finished.desk.folder / record.folder / "engine.log").read_text()
            assert "Application startup complete" in log
        names = {stage for stage, _ in record.stage_seconds}
        assert {"start", "warmup", "measure", "overhead"} <= names
        assert sum(seconds for _, seconds in record.stage_seconds) == pytest.approx(record.seconds, rel=0.05)


def test_run_again_starts_nothing_and_says_the_same(finished: Finished) -> None:
    before = autotune.read(finished.study).records
    again = finished.desk.run("run", "tiny.yaml")
    assert again.returncode == 0, again.stderr
    assert "(baseline)" not in again.stdout, "no trial may begin"
    assert autotune.read(finished.study).records == before
    keep = r"^(Recommended: |Keep what).*$"
    (first,), (second,) = ([m[0] for m in re.finditer(keep, text, re.M)] for text in (finished.output, again.stdout))
    assert first == second
    assert finished.desk.left() == []


def test_a_later_study_takes_over_what_was_measured_under_the_same_conditions(finished: Finished) -> None:
    """Shown as such, charged to nobody, never claimed; another load only says what to try first."""
    desk = finished.desk
    desk.write(
        VIRTUAL.replace("name: tiny\nmodel", "name: later\nmodel").replace("trials: 5", "trials: 2"), "later.yaml"
    )
    done = desk.run("run", "later.yaml", "--like", "tiny.yaml", *SEARCH_ONLY)
    assert done.returncode == 0, done.stderr
    assert "4 measurements taken over from tiny" in done.stdout
    assert "4 more were taken over from an earlier study; no claim rests on them" in done.stdout
    records = desk.result("later.yaml").records
    taken = [record for record in records if record.proposal.origin == "warm"]
    assert [record.proposal.origin for record in records][:5] == ["warm"] * 4 + ["baseline"], "the baseline is anew"
    known = {one.config.hash: one for one in desk.result().records if one.proposal.origin != "confirm"}
    assert all(record.outcome == known[record.config.hash].outcome and record.seconds == 0 for record in taken)
    assert all(record.proposal.note.startswith("measured in tiny, trial ") for record in taken)
    learnt = [record.config.hash for record in records if record.outcome.learn]
    assert len(learnt) == len(set(learnt)) == 6, "nothing known is measured again, and it used up no trials"

    other = VIRTUAL.replace("name: tiny\nmodel", "name: other\nmodel").replace("input_tokens: 64", "input_tokens: 65")
    desk.write(other, "other.yaml")
    done = desk.run("run", "other.yaml", "--like", "tiny.yaml", "--set", "search.trials=1", *SEARCH_ONLY)
    assert "0 measurements taken over from tiny, 4 of its configurations tried again first" in done.stdout
    assert "4 not taken over: another load" in done.stdout
    assert {record.proposal.origin for record in desk.result("other.yaml").records} == {"baseline"}


@pytest.mark.parametrize("change", ["baseline.args.max_num_seqs=8", "load.input_tokens=65", "model=llama-3.3-70b"])
def test_one_study_measures_one_thing(finished: Finished, change: str) -> None:
    before = autotune.read(finished.study).records
    done = finished.desk.run("run", "tiny.yaml", "--set", change)
    assert done.returncode == 2, done.stdout
    key = change.partition("=")[0].partition(".")[0]
    said = rf"error: (tiny\.yaml:\d+|--set {key}): {key}: study 'tiny' holds \d+ trials that were measured with another"
    assert re.match(said, done.stderr), done.stderr
    assert autotune.read(finished.study).records == before


def test_show(finished: Finished) -> None:
    overview = finished.desk.run("show", "tiny.yaml")
    assert overview.returncode == 0, overview.stderr
    assert len(re.findall(r"^ *\d+ .*measured", overview.stdout, re.MULTILINE)) == 9
    one = finished.desk.run("show", "tiny.yaml", "--trial", "0")
    assert one.returncode == 0, one.stderr
    assert "where the time went" in one.stdout and "phases of the start" in one.stdout
    none = finished.desk.run("show", "tiny.yaml", "--trial", "99")
    assert none.returncode == 2
    assert "trials of this study: 0 to 8" in none.stderr


def test_status(finished: Finished) -> None:
    done = finished.desk.run("status", "tiny.yaml", "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert (row["study"], row["trials"], row["measured"], row["broken"]) == ("tiny", 9, 9, 0)
    assert row["unfinished"] == "no"
    assert row["end"] in ("something better", "keep what you run today")
    assert "tiny: ended: " in finished.desk.run("status").stdout, "found without being named, where the file is"


@pytest.mark.parametrize("form", ["html", "md", "json"])
def test_report(finished: Finished, tmp_path: Path, form: str) -> None:
    out = tmp_path / f"report.{form}"
    done = finished.desk.run("report", "tiny.yaml", "--format", form, "--out", str(out))
    assert done.returncode == 0, done.stderr
    text = out.read_text()
    assert "llama-3.1-8b" in text
    assert "simulated" in text
    assert "The search ended because " in text


def test_export(finished: Finished, tmp_path: Path) -> None:
    done = finished.desk.run("export", "tiny.yaml", "--pick", "best-throughput", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert files
    assert any("llama-3.1-8b" in path.read_text() for path in files)


def test_json_events(desk: Desk) -> None:
    desk.write()
    process = desk.start("run", "tiny.yaml", "--json", "--trials", "2", *SEARCH_ONLY)
    assert process.stdout is not None
    seen = list(events(process.stdout))
    assert process.wait() == 0
    kinds = [event["event"] for event in seen if event["event"] != "stage"]
    trial = ["trial_started", "trial_finished"]
    assert kinds == ["study_started", *trial, *trial, "study_finished"]
    assert all({"time", "event"} <= set(event) for event in seen)
    finished = [event for event in seen if event["event"] == "trial_finished"]
    assert all(event["objectives"]["output_throughput@last"] > 0 for event in finished)


def test_what_cannot_serve_is_recorded_and_the_search_goes_on(desk: Desk) -> None:
    """A KV cache that is a hair too small passes the estimate and fails in the engine."""
    ladder, layouts = "{ladder: [0.41, 0.6, 0.7, 1.0]}", "{choice: [1, 3]}"
    space = f"{{parameters: {{gpu_memory_utilization: {ladder}, tensor_parallel_size: {layouts}}}}}"
    desk.write(VIRTUAL)
    words = ["--set", f"space={space}", "--set", "search.proposer=grid", "--set", "search.experts=false"]
    done = desk.run("run", "tiny.yaml", *words, *SEARCH_ONLY)
    assert done.returncode == 0, done.stdout + done.stderr
    records = desk.result().records
    refused = [(r.config.get("gpu_memory_utilization"), r.outcome.cause) for r in records
               if isinstance(r.outcome, Infeasible)]  # fmt: skip
    assert refused == [(0.41, "kv_cache_too_small")]
    measured = [record.config for record in records if isinstance(record.outcome, Measured)]
    assert {config.get("gpu_memory_utilization") for config in measured} == {None, 0.6, 0.7}
    assert not any(config.get("tensor_parallel_size") == 3 for config in measured)
    assert "1 configuration that cannot serve" in done.stdout
