"""A recommendation keeps what matters and drops the rest."""

import math
import random
from collections.abc import Callable

import pytest

from autotune.outcome import Broken, Outcome, Proposal, TrialRecord
from autotune.search.minimise import Minimiser, undo_steps
from autotune.space.config import EngineConfig
from autotune.testing.toy import OBJECTIVES, measured, record_of

BASE = EngineConfig.of({"seqs": 256, "tensor_parallel_size": 8})
WINNER = EngineConfig.of(
    {"seqs": 512, "weights": "fp8", "block": 32, "overlap": True, "tensor_parallel_size": 4, "data_parallel_size": 2},
    {"FAST": "1"},
)


def speed(effects: dict[str, float]) -> Callable[[EngineConfig], Outcome]:
    """Log gains by setting that is as in the winner."""

    def outcome(config: EngineConfig) -> Outcome:
        kept = {one.name for one in undo_steps(WINNER, BASE)} - {one.name for one in undo_steps(WINNER, config)}
        gain = sum(effects.get(name, 0.0) for name in kept)
        return measured({"output_throughput": 1000 * math.exp(gain), "ttft_p95_ms": 100 * math.exp(-gain)})

    return outcome


def play(minimiser: Minimiser, outcome: Callable[[EngineConfig], Outcome], faults: int = 0) -> list[TrialRecord]:
    history: list[TrialRecord] = []
    while (proposal := minimiser.next_run(history)) is not None:
        assert len(history) < 60
        broken = faults > 0 and len(history) % 3 == 1
        faults -= broken
        noise = 1 + 0.004 * math.sin(7 * len(history))
        result = outcome(proposal.config)
        if not broken and not isinstance(result, Broken):
            values = OBJECTIVES.values(record_of(0, proposal, result))
            assert values is not None
            result = measured({"output_throughput": values[0] * noise, "ttft_p95_ms": values[1] / noise})
        history.append(record_of(len(history), proposal, Broken("port_taken", "x") if broken else result))
    return history


def minimiser(refuse: Callable[[EngineConfig], str | None] = lambda _: None) -> Minimiser:
    return Minimiser(WINNER, BASE, OBJECTIVES, refuse)


def test_parallel_sizes_are_one_setting() -> None:
    names = [one.name for one in undo_steps(WINNER, BASE)]
    assert sorted(names) == ["FAST", "block", "layout", "overlap", "seqs", "weights"]
    layout = next(one for one in undo_steps(WINNER, BASE) if one.name == "layout")
    assert layout.config.get("tensor_parallel_size") == 8 and layout.config.get("data_parallel_size") is None
    everything = WINNER
    for one in undo_steps(WINNER, BASE):
        everything = undo_steps(everything, BASE)[0].config
        assert one is not None
    assert everything == BASE


def test_only_what_matters_is_left() -> None:
    history = play(minimiser(), speed({"weights": 0.3, "layout": 0.1}))
    result = minimiser().result(history)
    assert result.config == EngineConfig.of(
        {"seqs": 256, "weights": "fp8", "tensor_parallel_size": 4, "data_parallel_size": 2}
    )
    assert sorted(result.dropped) == ["FAST", "block", "overlap", "seqs"]
    effects = {one.name: one for one in result.effects}
    assert effects["weights"].matters and effects["weights"].ratios[0].value == pytest.approx(math.exp(0.3), rel=0.02)
    assert not effects["block"].matters
    # winner and six single undos twice, then winner and the minimal one twice
    assert len(history) == 2 * 7 + 2 * 2


def test_small_effects_that_add_up_are_kept() -> None:
    """Each of four settings is within the margin; dropping all of them would lose six percent."""
    small = dict.fromkeys(("FAST", "block", "overlap", "seqs"), 0.015)
    history = play(minimiser(), speed({"weights": 0.3, "layout": 0.1, **small}))
    result = minimiser().result(history)
    gain = speed({**small})
    lost = OBJECTIVES.values(record_of(0, history[0].proposal, gain(result.config)))
    kept = OBJECTIVES.values(record_of(0, history[0].proposal, gain(WINNER)))
    assert lost is not None and kept is not None
    assert lost[0] / kept[0] > 0.97


def test_what_cannot_start_without_it_is_needed_and_not_tested() -> None:
    def refuse(config: EngineConfig) -> str | None:
        return "the weights do not fit" if config.get("weights") is None else None

    history = play(minimiser(refuse), speed({}))
    effect = {one.name: one for one in minimiser(refuse).result(history).effects}["weights"]
    assert effect.matters and effect.sentence == "needed: without it the weights do not fit"
    assert all(record.config.get("weights") == "fp8" for record in history)


def test_faults_are_run_again() -> None:
    clean, faulty = play(minimiser(), speed({"weights": 0.3})), play(minimiser(), speed({"weights": 0.3}), faults=3)
    assert len(faulty) == len(clean) + 3
    assert minimiser().result(faulty).config == minimiser().result(clean).config


def test_a_winner_without_changes_has_nothing_to_undo() -> None:
    assert Minimiser(BASE, BASE, OBJECTIVES, lambda _: None).next_run([]) is None


def test_noise_keeps_little_and_what_helps_stays() -> None:
    """Two rounds of one arm have one degree of freedom; pooled over the arms the spread is known well enough."""
    kept = {"weights": 0, "layout": 0, "block": 0, "FAST": 0, "overlap": 0}
    studies = 12
    for seed in range(studies):
        draw = random.Random(seed)

        def noisy(config: EngineConfig, draw: random.Random = draw) -> Outcome:
            clean = speed({"weights": 0.3, "layout": 0.12})(config)
            values = OBJECTIVES.values(record_of(0, Proposal(config), clean))
            assert values is not None
            fast, soon = (math.exp(draw.gauss(0.0, 0.03)) for _ in range(2))
            return measured({"output_throughput": values[0] * fast, "ttft_p95_ms": values[1] * soon})

        result = minimiser().result(play(minimiser(), noisy))
        for name in kept:
            kept[name] += name not in result.dropped
    assert kept["weights"] == studies and kept["layout"] >= studies - 1, kept
    assert max(kept["block"], kept["FAST"], kept["overlap"]) <= studies // 2, kept
