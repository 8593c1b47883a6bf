"""What a report says of a study."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean

import pytest

from autotune.engine.protocol import Resolved
from autotune.errors import SpecError
from autotune.outcome import Broken, Infeasible, Measured, Proposal, TrialRecord
from autotune.quality.sanity import yes_or_no
from autotune.report.content import gather, read_content
from autotune.report.failures import EXCERPT_LINES
from autotune.report.markdown import markdown
from autotune.report.page import html_page
from autotune.report.payload import page_data
from autotune.report.trials import reason_of
from autotune.report.values import ReportContent, Standing
from autotune.report.wording import ratio_text
from autotune.result import Recommendation
from autotune.search.front import front_of
from autotune.search.objectives import Objectives
from autotune.spec.load import load_study
from autotune.spec.space import SpaceSpec
from autotune.spec.study import ConfirmSpec, RivalSpec
from autotune.study import Study, open_study
from autotune.testing.history import SECRET, history_spec, made_up_history
from tests.unit.report.conftest import STUDY, stored


def test_every_standing_is_told_apart(content: ReportContent, records: tuple[TrialRecord, ...]) -> None:
    assert {trial.standing for trial in content.trials} == set(Standing)
    for trial, record in zip(content.trials, records, strict=True):
        match record.outcome:
            case Broken():
                assert trial.standing is Standing.BROKEN
            case Infeasible(started=started):
                assert trial.standing is (Standing.INFEASIBLE if started else Standing.REFUSED)
            case Measured(quality=quality):
                assert (trial.standing is Standing.QUALITY) == (quality is not None and quality.verdict == "failed")


def test_a_check_without_a_figure_is_told_in_words_and_not_as_a_share_of_a_limit(
    records: tuple[TrialRecord, ...],
) -> None:
    """A failed one would be an empty bar, a passed one a bar that fills its limit."""
    number, measured = next((one.number, one.outcome) for one in records
                            if isinstance(one.outcome, Measured) and one.outcome.quality is not None)  # fmt: skip
    assert measured.quality is not None
    plain = yes_or_no("tokenizer", False, "splits the probe differently")
    quality = replace(measured.quality, checks=(plain, *measured.quality.checks), precision_key="other")
    changed = [replace(one, outcome=replace(measured, quality=quality)) if one.number == number else one
               for one in records]  # fmt: skip
    (view,) = [view for view in gather(history_spec(), changed).quality if view.key == "other"]
    assert (view.checks[0].plain, view.checks[0].used, view.checks[0].text) == (True, 0.0, "does not hold")
    assert not any(check.plain for check in view.checks[1:])


def test_the_front_is_the_search_s_front(content: ReportContent, records: tuple[TrialRecord, ...]) -> None:
    front = {record.number for record in front_of(records, Objectives.of(history_spec()))}
    assert {trial.number for trial in content.trials if trial.standing is Standing.FRONT} == front


def test_the_notes_of_a_level_reach_the_page(records: tuple[TrialRecord, ...]) -> None:
    number, measured = next((one.number, one.outcome) for one in records if isinstance(one.outcome, Measured))
    levels = tuple(replace(level, notes=("overloaded: 9 more",)) for level in measured.load.levels)
    noted = replace(measured, load=replace(measured.load, levels=levels))
    changed = [replace(one, outcome=noted) if one.number == number else one for one in records]
    trials = page_data(gather(history_spec(), changed))["trials"]
    found = [level.get("notes") for trial in trials for level in trial.get("levels", [])]
    assert found.count(["overloaded: 9 more"]) == len(levels)
    assert found.count(None) == len(found) - len(levels)


def test_a_winner_that_the_host_holds_up_is_told_with_its_levels(
    content: ReportContent, records: tuple[TrialRecord, ...]
) -> None:
    assert not any("waited for their host" in note for note in content.notes)
    changed = []
    for one in records:
        if isinstance(one.outcome, Measured):
            busy = 80.0 + 3 * (one.proposal.origin == "confirm")
            levels = tuple(
                replace(level, engine=(("gpu_utilisation_mean", busy + 9 * number),))
                for number, level in enumerate(one.outcome.load.levels)
            )
            one = replace(one, outcome=replace(one.outcome, load=replace(one.outcome.load, levels=levels)))
        changed.append(one)
    winner, today = next(one for one in records if one.number == content.chosen), records[0].config

    def said(final: Recommendation | None) -> list[str]:
        return [note for note in gather(history_spec(), changed, final).notes if "waited for their host" in note]

    (note,) = said(None)
    assert note.startswith(f"With trial {winner.number} the GPUs waited for their host: they were busy for 80% at ")
    assert "What it measured holds for this host;" in note and "98%" not in note
    (note,) = said(Recommendation(winner.config, today, winner.number, proven=True, sentence="better"))
    assert note.startswith("With what is recommended the GPUs waited for their host: they were busy for 83% at ")
    assert "Its gain holds for this host;" in note  # its fresh starts are what the gain rests on
    assert not said(Recommendation(today, today, 0, proven=False, sentence="nothing was proven to be better"))


def test_slow_links_are_told_of_every_trial_and_once_for_all(records: tuple[TrialRecord, ...]) -> None:
    slow = Resolved(warnings=("4 tensor parallel ranks talk across sockets",))
    changed = [replace(one, resolved=slow) if one.number in (2, 5) else one for one in records]
    content = gather(history_spec(), changed)
    assert "4 tensor parallel ranks talk across sockets: trials 2, 5." in content.notes
    told = {trial.number for trial in content.trials if "talk across sockets" in trial.note}
    assert told == {2, 5}


def test_a_broken_limit_is_told_with_its_figures(content: ReportContent) -> None:
    late = next(trial for trial in content.trials if trial.standing is Standing.LIMIT)
    assert "TTFT p95" in late.reason and "limit 1500 ms" in late.reason


def test_a_level_that_was_stopped_has_no_figure_made_up_for_it(records: tuple[TrialRecord, ...]) -> None:
    measured = records[0].outcome
    assert isinstance(measured, Measured)
    *levels, last = measured.load.levels
    stopped = replace(last, metrics=(), stopped="hopeless: too late")
    cut = replace(records[0], outcome=replace(measured, load=replace(measured.load, levels=(*levels, stopped))))
    told = reason_of(cut, Objectives.of(history_spec()))
    assert "TTFT p95 not measured, limit 1500 ms" in told
    assert told.endswith(f"; {last.level} hopeless: too late")


def test_one_round_has_no_interval_to_show() -> None:
    assert ratio_text(0.96, 0.0, math.inf) == "×0.96"
    assert ratio_text(1.44, 1.4, 1.48) == "×1.44 [1.40, 1.48]"


def test_three_sentences_say_what_ran_what_is_best_and_how_sure(content: ReportContent) -> None:
    ran, claim, evidence = content.sentences
    assert "configurations of example/made-up-8b on vLLM were measured" in ran
    assert f"rial {content.chosen} " in claim and "not confirmed yet" in claim
    assert "under way" in evidence
    assert not content.simulated


def test_spending_adds_up_to_all_gpu_time(content: ReportContent, records: tuple[TrialRecord, ...]) -> None:
    assert sum(seconds for _, seconds in content.spending) == pytest.approx(sum(one.seconds for one in records))
    failed = sum(one.seconds for one in records if not isinstance(one.outcome, Measured))
    assert dict(content.spending)["failed"] == pytest.approx(failed)


def test_confirmed_gains_replace_those_of_the_search(records: tuple[TrialRecord, ...]) -> None:
    chosen = next(one for one in records if one.number == gather(history_spec(), records).chosen)
    final = Recommendation(
        chosen.config,
        records[0].config,
        chosen.number,
        proven=True,
        sentence="better than what you run today: x1.700 [1.650, 1.750] in output_throughput@last over 3 rounds",
        gains=(("output_throughput@last", 1.7, 1.65, 1.75),),
    )
    content = gather(history_spec(), records, final)
    throughput, ttft = content.gains
    starts = [one.outcome.load.levels[-1].estimate("output_throughput") for one in records
              if one.proposal.origin == "confirm" and one.config == chosen.config
              and isinstance(one.outcome, Measured)]  # fmt: skip
    measured = [one for one in starts if one is not None]
    assert throughput.found is not None and throughput.starts == len(measured) == 3
    assert throughput.found.value == pytest.approx(geometric_mean(one.value for one in measured))
    assert throughput.found.low == min(one.low for one in measured)
    assert (throughput.ratio, throughput.low, throughput.high, throughput.confirmed) == (1.7, 1.65, 1.75, True)
    assert not ttft.confirmed and ttft.low is None
    assert "in output throughput over" in content.sentences[1]
    assert "confirmed in 3 rounds" in content.sentences[2]


def test_every_change_says_what_it_is_worth_and_what_was_left_out_is_named(records: tuple[TrialRecord, ...]) -> None:
    today = records[0].config
    config = today.merged({"tensor_parallel_size": 2, "data_parallel_size": 4, "max_num_seqs": 77})
    effects = (("layout", "x1.200 [1.100, 1.310] in output_throughput@last over 2 rounds"),
               ("max_num_seqs", "needed: without it a limit does not hold"),
               ("block_size", "undoing it loses nothing that can be measured"))  # fmt: skip
    winner = next(one for one in records if one.number == gather(history_spec(), records).chosen)
    final = Recommendation(config, today, winner.number, proven=True, sentence="better", effects=effects)
    content = gather(history_spec(), records, final)
    worth = {one.name: one.worth for one in content.changes}
    assert (
        worth["tensor_parallel_size"]
        == worth["data_parallel_size"]
        == ("x1.200 [1.100, 1.310] in output throughput over 2 rounds")
    )
    assert worth["max_num_seqs"] == "needed: without it a limit does not hold"
    assert f"The winner, trial {winner.number}, was confirmed in 3 rounds of fresh" in content.sentences[2]
    assert content.left_out == ("block_size is left out: undoing it loses nothing that can be measured",)
    page, text = html_page(content), markdown(content).replace("\\", "")
    for written in (page, text):
        assert worth["tensor_parallel_size"] in written and content.left_out[0] in written


def test_a_ratio_above_one_is_better_for_latencies_too(content: ReportContent) -> None:
    ttft = content.gains[1]
    assert ttft.baseline is not None and ttft.found is not None and ttft.ratio is not None
    assert (ttft.ratio > 1) == (ttft.found.value < ttft.baseline.value)


def test_failures_of_one_class_stand_together_with_advice(content: ReportContent) -> None:
    memory = next(one for one in content.failures if one.cause == "oom_graph_capture")
    assert len(memory.trials) > 1
    assert memory.advice == ("Lower gpu_memory_utilization to 0.9.",)
    assert SECRET not in memory.reason
    assert [one.seconds for one in content.failures] == sorted((one.seconds for one in content.failures), reverse=True)


def test_the_end_of_a_log_is_quoted_without_secrets_also_after_a_move(tmp_path: Path) -> None:
    records = made_up_history(40, folder=tmp_path / "where-it-was")
    failed = next(one for one in records if isinstance(one.outcome, Infeasible) and one.outcome.started)
    moved = tmp_path / "now" / f"trial-{failed.number:04d}"
    moved.mkdir(parents=True)
    lines = [f"line {number}" for number in range(100)]
    (moved / "engine.log").write_text("\n".join([*lines, f"--api-key {SECRET}"]))
    content = gather(history_spec(), records, home=tmp_path / "now")
    assert isinstance(failed.outcome, Infeasible)
    excerpt = next(one.excerpt for one in content.failures if one.cause == failed.outcome.cause)
    assert excerpt.splitlines()[0] == f"line {100 - EXCERPT_LINES + 1}"
    assert SECRET not in excerpt and "[redacted]" in excerpt


def test_a_simulated_engine_is_recognised_by_its_own_word(records: tuple[TrialRecord, ...]) -> None:
    said = replace(records[0], resolved=Resolved(version="0.32.0+simulated"))
    content = gather(history_spec(), (said, *records[1:]))
    assert content.simulated and "on a simulated engine" in content.sentences[0]


def test_a_study_that_measured_nothing_recommends_nothing(records: tuple[TrialRecord, ...]) -> None:
    failed = [one for one in records if not isinstance(one.outcome, Measured)]
    content = gather(history_spec(), failed)
    assert content.chosen is None and content.command == "" and content.settings == ()
    assert content.sentences[1].startswith("Nothing can be recommended")
    empty = gather(history_spec(), ())
    assert empty.trials == () and "baseline was not measured yet" in empty.sentences[1]


def test_secret_variables_stay_out(records: tuple[TrialRecord, ...]) -> None:
    secret = replace(
        records[1], proposal=Proposal(records[1].config.merged({}, {"HF_TOKEN": "plain-word"}), origin="expert")
    )
    content = gather(history_spec(), (records[0], secret))
    assert content.trials[1].env == (("HF_TOKEN", "[redacted]"),)
    assert "plain-word" not in repr(content)


def test_a_study_is_read_from_its_store(study: Study, content: ReportContent) -> None:
    read = read_content(study)
    assert read.trials == content.trials and read.path == "study.yaml"


def test_the_study_in_a_report_needs_no_other_file(tmp_path: Path, records: tuple[TrialRecord, ...]) -> None:
    (tmp_path / "mine.yaml").write_text("parameters: {max_num_seqs: {ladder: [16, 77]}}")
    study = stored(tmp_path, records, f"{STUDY}space: mine.yaml\n")
    alone = tmp_path / "elsewhere.yaml"
    alone.write_text(read_content(study).study_file)
    space = load_study(alone).space
    assert isinstance(space, SpaceSpec) and space.parameters["max_num_seqs"].ladder == [16, 77]
    (tmp_path / "mine.yaml").unlink()
    assert "space: mine.yaml" in read_content(study).study_file


def test_a_study_that_never_ran_says_how_to_run_it(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text("name: never\nmodel: example/model\n")
    with pytest.raises(SpecError, match="autotune run"):
        read_content(open_study(file))


def test_a_study_that_keeps_what_runs_shows_why(records: tuple[TrialRecord, ...]) -> None:
    today = records[0].config
    kept = Recommendation(today, today, 0, proven=False, sentence="nothing was proven to be better")
    content = gather(history_spec(), records, kept)
    assert content.kept
    assert content.sentences[1] == "Keep what you run today (the baseline): nothing was proven to be better."
    assert "1 other configuration was measured again beside it in 3 rounds" in content.sentences[2]
    finalist = next(one.config for one in records if one.proposal.origin == "confirm" and one.config != today)
    number = next(
        one.number for one in reversed(records) if one.config == finalist and one.proposal.origin != "confirm"
    )
    assert len(content.unproven) == 1
    assert content.unproven[0].startswith(f"Finalist, trial {number}: output throughput ×1.")
    assert "over 3 rounds of fresh starts" in content.unproven[0]
    page, text = html_page(content), markdown(content)
    rival = RivalSpec(args=dict(finalist.args), env=dict(finalist.env))
    named = history_spec().model_copy(update={"confirm": ConfirmSpec(against={"last year's": rival})})
    assert gather(named, records, kept).unproven[0].startswith("last year's: output throughput ×1.")
    for written in (page, text):
        assert "What runs today" in written
        assert "Better by" not in written
        assert content.unproven[0].partition(":")[0] in written
    search = [one for one in records if one.proposal.origin != "confirm"]
    assert gather(history_spec(), search, kept).sentences[2].startswith("The figures below are those of the search")
    better = gather(history_spec(), records)
    assert not better.kept and not better.unproven
    assert "Better by" in html_page(better) and "Better by" in markdown(better)
