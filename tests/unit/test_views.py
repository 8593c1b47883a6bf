"""What a terminal shows of a study that runs."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

from rich.console import Console

from autotune.cli.views import LiveView
from autotune.events import ConfirmationStarted, StudyFinished, StudyStarted, TrialFinished
from autotune.search.objectives import Objectives
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


def test_the_search_is_not_said_to_last_longer_than_its_wall_clock() -> None:
    records = made_up_history(60)
    console = Console(file=StringIO(), width=160, force_terminal=False)
    view = LiveView(Objectives.of(history_spec()), records[0].config, console)
    view.notify(StudyStarted("chat", Path("chat"), 1_000, tuple(records), simulated=False, seconds_left=90.0))
    with console.capture() as got:
        console.print(view.screen())
    assert "about 1 min 30 s of search left" in got.get() or "about 1 min 29 s of search left" in got.get()
