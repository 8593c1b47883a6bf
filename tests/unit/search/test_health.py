"""One configuration that always breaks is its own affair; a baseline that breaks is the machine's."""

from __future__ import annotations

from dataclasses import replace

from autotune.outcome import Broken, Infeasible, Outcome, Proposal, TrialRecord
from autotune.search.confirm import ConfirmRun, analyse, next_run, plan, rounds_of
from autotune.search.health import MachineHealth, has_another_attempt, settled
from autotune.space.config import EngineConfig
from autotune.testing.toy import OBJECTIVES, measured, record_of

BASE = EngineConfig.of({"max_num_seqs": 256})
HANG = Broken("stall", "no token for 60 s", attempts=2)
BUSY = Broken("device_memory_busy", "another process took 20 GiB", attempts=2, machine=True)
FINE = measured({"output_throughput": 1000.0, "ttft_p95_ms": 100.0})


def other(seqs: int) -> EngineConfig:
    return EngineConfig.of({"max_num_seqs": seqs})


def trial(number: int, config: EngineConfig, outcome: Outcome, origin: str = "sampler") -> TrialRecord:
    return record_of(number, Proposal(config, origin=origin), outcome)


class Session:
    """Trials one after the other; stops where the study would."""

    def __init__(self) -> None:
        self.health = MachineHealth(BASE)
        self.history: list[TrialRecord] = []

    def ends(self, config: EngineConfig, outcome: Outcome, origin: str = "sampler") -> str | None:
        record = trial(len(self.history), config, outcome, origin)
        self.history.append(record)
        return self.health.told(record)


def test_one_configuration_that_always_breaks_stops_nothing() -> None:
    session = Session()
    assert session.ends(BASE, FINE, "baseline") is None
    for _ in range(5):
        assert session.ends(other(1), HANG) is None
        assert session.health.question() is None, "the configuration is the suspect, not the machine"


def test_two_configurations_in_a_row_ask_the_baseline_and_a_measured_one_clears_the_machine() -> None:
    session = Session()
    session.ends(BASE, FINE, "baseline")
    session.ends(other(1), HANG)
    assert session.ends(other(2), HANG) is None
    question = session.health.question()
    assert question is not None and question.config == BASE and question.origin == "sentinel"
    assert session.ends(BASE, FINE, "sentinel") is None
    assert session.health.question() is None
    assert session.ends(other(3), HANG) is None and session.health.question() is None


def test_what_is_infeasible_neither_clears_nor_accuses_the_machine() -> None:
    session = Session()
    session.ends(other(1), HANG)
    session.ends(other(2), Infeasible("oom_kv_cache", "too large"))
    assert session.health.question() is None
    session.ends(other(3), HANG)
    assert session.health.question() is not None


def test_a_baseline_that_breaks_as_well_ends_the_study() -> None:
    session = Session()
    session.ends(BASE, FINE, "baseline")
    session.ends(other(1), HANG)
    session.ends(other(2), HANG)
    assert session.ends(BASE, HANG, "sentinel") is None, "once can be chance"
    assert session.health.question() is not None
    assert "2 configurations broke in a row, and what you run today" in (session.ends(BASE, HANG, "sentinel") or "")


def test_a_baseline_that_never_comes_up_ends_the_study() -> None:
    session = Session()
    sentences = [session.ends(BASE, HANG, "baseline") for _ in range(3)]
    assert sentences[:2] == [None, None] and "broke 3 times in a row" in (sentences[2] or "")


def test_a_known_fault_of_the_machine_ends_the_study_when_it_repeats() -> None:
    session = Session()
    assert session.ends(other(1), BUSY) is None
    assert "second time" in (session.ends(other(1), BUSY) or "")
    cleared = Session()
    cleared.ends(other(1), BUSY)
    cleared.ends(other(2), FINE)
    assert cleared.ends(other(1), BUSY) is None, "something was measured in between"


def test_a_fault_that_cannot_pass_ends_the_study_at_once() -> None:
    assert "disk_full" in (Session().ends(other(1), Broken("disk_full", "no room", stop=True)) or "")


def test_a_hang_is_tried_once_more_and_an_interruption_takes_nothing_from_it() -> None:
    config = other(1)
    history = [trial(0, config, Broken("interrupted", "Ctrl-C"))]
    assert has_another_attempt(history[-1], history)
    history.append(trial(1, config, HANG))
    assert has_another_attempt(history[-1], history)
    history.append(trial(2, config, HANG))
    assert not has_another_attempt(history[-1], history)
    alone = [replace(trial(0, config, HANG), attempt=1), replace(trial(1, config, HANG), attempt=2)]
    assert has_another_attempt(alone[0], alone[:1]) and not has_another_attempt(alone[1], alone)


class TestProof:
    def confirmed(self, outcomes: dict[str, Outcome]) -> tuple[list[TrialRecord], list[ConfirmRun]]:
        chosen = [trial(1, other(1), FINE), trial(2, other(2), FINE)]
        runs = plan(chosen, BASE, 2)
        history: list[TrialRecord] = []
        while (following := next_run(runs, history)) is not None:
            assert len(history) < 30, "it ends"
            config = following.proposal.config
            history.append(record_of(len(history), following.proposal, outcomes.get(config.hash, FINE)))
        return history, runs

    def test_a_finalist_that_always_breaks_ends_and_is_not_recommended(self) -> None:
        better = measured({"output_throughput": 2000.0, "ttft_p95_ms": 50.0})
        history, _ = self.confirmed({other(1).hash: HANG, other(2).hash: better})
        assert sum(record.config == other(1) for record in history) == 6, "three attempts for each round"
        found = analyse(rounds_of(history), OBJECTIVES, BASE)
        broken = next(arm for arm in found.arms if arm.config == other(1))
        assert broken.problems == ("2 of 2 fresh starts gave no figures",)
        assert found.winner is not None and found.winner.config == other(2)

    def test_a_fault_of_the_baseline_is_no_limit_that_it_breaks(self) -> None:
        history, _ = self.confirmed({BASE.hash: Broken("not_as_asked", "other backend", retry=False)})
        found = analyse(rounds_of(history), OBJECTIVES, BASE)
        assert found.winner is None and found.sentence == "what you run today could not be measured again"

    def test_before_the_last_attempt_of_a_finalist_the_machine_is_asked(self) -> None:
        session = Session()
        session.ends(other(1), HANG, "confirm")
        assert session.health.question() is None
        session.ends(other(1), HANG, "confirm")
        assert session.health.question() is not None

    def test_interruptions_are_never_the_last_attempt(self) -> None:
        lost = [trial(n, other(1), Broken("interrupted", "Ctrl-C"), "confirm") for n in range(9)]
        assert settled(lost, "confirm") == []
