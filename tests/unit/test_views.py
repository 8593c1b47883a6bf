"""What a terminal shows of a study that runs."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

from rich.console import Console

from autotune.cli.views import LiveView, front_table
from autotune.events import ConfirmationStarted, StudyFinished, StudyStarted, TrialFinished
from autotune.outcome import Proposal
from autotune.search.objectives import Objectives
from autotune.space.config import EngineConfig
from autotune.testing.history import history_spec, made_up_history


def test_the_screen_counts_the_search_and_the_proof_apart_and_says_why_it_ended() -> None:
    """A bar that reads "31 of 10" is what one gets from counting repeats of what was searched."""
    records = made_up_history(60)
    proof = [one for one in records if one.proposal.origin == "confirm"]
    before = tuple(one for one in records if one.proposal.origin != "confirm")
    console = Console(file=StringIO(), width=160, force_terminal=False)
    view = LiveView(Objectives.of(history_spec()), records[0].config, console)

    def screen() -> str:
        with console.capture() as got:
            console.print(view.screen())
        return got.get()

    view.notify(StudyStarted("chat", Path("chat"), 60, before, simulated=False))
    searched = screen().split(" of 60 trials of the search")[0].split()[-1]
    assert 0 < int(searched) <= 60
    view.notify(ConfirmationStarted("60 of 60 trials are done", len(proof)))
    for number, record in enumerate(proof):
        assert f"confirming, {number} of {len(proof)} runs (60 of 60 trials are done)" in screen()
        view.notify(TrialFinished(record))
    assert f"{searched} of 60 trials of the search" in screen()
    view.notify(StudyFinished("60 of 60 trials are done"))
    assert "study ends: 60 of 60 trials are done" in console.file.getvalue()  # type: ignore[attr-defined]


def test_no_setting_of_the_front_is_broken_in_a_usual_terminal() -> None:
    records = made_up_history(60)
    objectives = Objectives.of(history_spec())
    config = EngineConfig.of({"max_cudagraph_capture_size": 1024, "max_num_batched_tokens": 16384})
    console = Console(file=StringIO(), width=80)
    record = replace(records[0], proposal=Proposal(config, origin="sampler"))
    console.print(front_table([record], objectives, EngineConfig()))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "max_cudagraph_capture_size=1024" in shown and "max_num_batched_tokens=16384" in shown


def test_the_search_is_not_said_to_last_longer_than_its_wall_clock() -> None:
    records = made_up_history(60)
    console = Console(file=StringIO(), width=160, force_terminal=False)
    view = LiveView(Objectives.of(history_spec()), records[0].config, console)
    view.notify(StudyStarted("chat", Path("chat"), 1_000, tuple(records), simulated=False, seconds_left=90.0))
    with console.capture() as got:
        console.print(view.screen())
    assert "about 1 min 30 s of search left" in got.get() or "about 1 min 29 s of search left" in got.get()
