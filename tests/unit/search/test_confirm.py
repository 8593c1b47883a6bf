"""The proof: order of runs, claims, and how often two identical arms are called different."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from autotune.load.report import Estimate, Level, LevelReport, LoadReport
from autotune.outcome import Broken, Infeasible, Measured, Outcome, Proposal, TrialRecord
from autotune.search.confirm import Confirmation, analyse, finalists, next_run, plan, rounds_of, versus
from autotune.search.objectives import Objective, Objectives, Slo
from autotune.space.config import EngineConfig
from autotune.student import t_quantile
from autotune.testing.toy import OBJECTIVES, measured, record_of

BASE = EngineConfig.of({"seqs": 256})
ARM = EngineConfig.of({"seqs": 512})
OTHER = EngineConfig.of({"seqs": 512, "weights": "fp8"})


def run(config: EngineConfig, outcome: Outcome, number: int = 0, origin: str = "confirm") -> TrialRecord:
    return record_of(number, Proposal(config, (("seqs", 1),), origin), outcome)


def figures(throughput: float, ttft: float = 100.0) -> Measured:
    return measured({"output_throughput": throughput, "ttft_p95_ms": ttft})


def rounds(rows: Sequence[dict[EngineConfig, Outcome]]) -> list[dict[str, TrialRecord]]:
    return [{config.hash: run(config, outcome) for config, outcome in row.items()} for row in rows]


def studies(
    count: int, gains: Sequence[float], sigma: float, drift: float, seed: int, arms: int = 3, length: int = 3
) -> list[Confirmation]:
    """Simulated confirmations of `arms` arms with true gains, run-to-run noise and a random walk of the machine."""
    rng = np.random.default_rng(seed)
    found = []
    configs = [BASE, *(EngineConfig.of({"seqs": 256, "arm": index + 1}) for index in range(arms))]
    for _ in range(count):
        walk, rows = 0.0, []
        for number in range(length):
            shift = number % len(configs)
            row: dict[EngineConfig, Outcome] = {}
            for index in [*range(shift, len(configs)), *range(shift)]:
                walk += drift * rng.normal()
                gain = 0.0 if index == 0 else gains[index - 1]
                speed = 1000 * math.exp(gain + walk + sigma * rng.normal())
                row[configs[index]] = figures(speed, 100 * math.exp(-gain - walk + sigma * rng.normal()))
            rows.append(row)
        found.append(analyse(rounds(rows), OBJECTIVES, BASE))
    return found


@pytest.mark.parametrize(("sigma", "drift"), [(0.005, 0.0), (0.015, 0.0), (0.03, 0.0), (0.05, 0.0), (0.02, 0.012)])
def test_identical_arms_are_rarely_called_better(sigma: float, drift: float) -> None:
    """At most 5 in 100 studies claim anything, over three arms and two objectives together."""
    found = studies(400, [0.0, 0.0, 0.0], sigma, drift, seed=5)
    assert sum(one.winner is not None for one in found) / len(found) <= 0.05


def test_identical_arms_with_one_finalist() -> None:
    found = studies(400, [0.0], 0.03, 0.0, seed=6, arms=1)
    assert sum(one.winner is not None for one in found) / len(found) <= 0.05


def test_a_real_gain_is_claimed_with_an_interval_that_holds_it() -> None:
    found = studies(100, [0.25, 0.0, 0.0], 0.015, 0.0, seed=7)
    claimed = [one for one in found if one.winner is not None and one.winner.config.get("arm") == 1]
    assert len(claimed) >= 95
    inside = [
        one for one in claimed if one.winner and one.winner.ratios[0].low <= math.exp(0.25) <= one.winner.ratios[0].high
    ]
    assert len(inside) >= 0.95 * len(claimed)


@pytest.mark.parametrize("level", ["first", 4.0])
def test_rounds_that_agree_by_luck_are_no_surer_than_the_windows_of_the_level_that_counts(level: float | str) -> None:
    objective = Objectives((Objective("output_throughput", True, level),), levels=(4.0, 64.0))

    def curve(value: float) -> Measured:
        """Known to 10 % at 4 streams and to 0.1 % at 64."""
        figures = (Estimate(value, value * 0.9, value * 1.1, 100), Estimate(900.0, 899.1, 900.9, 100))
        levels = zip((4.0, 64.0), figures, strict=True)
        return Measured(
            LoadReport(tuple(LevelReport(Level("closed", at), (("output_throughput", one),)) for at, one in levels))
        )

    found = analyse(rounds([{BASE: curve(100.0), ARM: curve(104.0)}] * 3), objective, BASE)
    assert found.winner is None
    (ratio,) = found.arms[0].ratios
    assert ratio.low < 1 < ratio.value == pytest.approx(1.04)


def test_a_gain_below_the_margin_is_not_claimed() -> None:
    found = studies(200, [0.01, 0.01, 0.01], 0.003, 0.0, seed=8)
    assert sum(one.winner is not None for one in found) <= 4


def test_no_better_is_a_result() -> None:
    row = {BASE: figures(1000), ARM: figures(1003)}
    result = analyse(rounds([row] * 3), OBJECTIVES, BASE)
    assert result.winner is None
    assert result.sentence == "nothing was proven to be better"
    assert result.arms[0].verdict == "tie"


def test_one_round_claims_nothing() -> None:
    result = analyse(rounds([{BASE: figures(1000), ARM: figures(2000)}]), OBJECTIVES, BASE)
    assert result.winner is None


def test_ties_go_to_fewer_changes() -> None:
    rows = [
        {BASE: figures(1000 + n), ARM: figures(1500 + n, 90), OTHER: figures(1510 + n, 90)} for n in (0.0, 3.0, -2.0)
    ]
    winner = analyse(rounds(rows), OBJECTIVES, BASE).winner
    assert winner is not None and winner.config == ARM


def test_faster_at_a_price_says_the_price() -> None:
    rows = [{BASE: figures(1000 + n, 100), ARM: figures(1500 + n, 300 + n)} for n in (0.0, 3.0, -2.0)]
    result = analyse(rounds(rows), OBJECTIVES, BASE)
    assert result.arms[0].verdict == "trade"
    assert "at the price of x0.3" in result.sentence


class TestLimits:
    objectives = Objectives(items=(Objective("output_throughput", True, "last"),), slos=(Slo("ttft_p95_ms", 110.0),))

    def test_an_slo_must_hold_with_confidence(self) -> None:
        rows = [{BASE: figures(1000), ARM: figures(1500, ttft)} for ttft in (90.0, 105.0, 130.0)]
        result = analyse(rounds(rows), self.objectives, BASE)
        assert result.winner is None and result.arms[0].verdict == "infeasible"
        assert "of its limit of 110 ms" in result.arms[0].problems[0]

    def test_a_failed_start_disqualifies(self) -> None:
        rows = [{BASE: figures(1000), ARM: figures(1500)}] * 2
        rows.append({BASE: figures(1000), ARM: Infeasible("oom_serving", "x")})
        result = analyse(rounds(rows), self.objectives, BASE)
        assert result.arms[0].problems == ("1 of 3 fresh starts gave no figures",)

    def test_holding_limits_that_today_breaks_is_better(self) -> None:
        rows = [{BASE: figures(1000 + n, 300), ARM: figures(900 + n, 80)} for n in (0.0, 2.0, 1.0)]
        result = analyse(rounds(rows), self.objectives, BASE)
        assert result.winner is not None and not result.baseline_holds
        assert "what you run today does not" in result.sentence


def test_the_winner_is_compared_with_a_rival_in_the_same_rounds() -> None:
    """A drift that hits a whole round alike is no difference between them."""
    rows = rounds([{ARM: figures(1500 * drift), OTHER: figures(1000 * drift)} for drift in (1.0, 0.8, 1.2)])
    throughput = versus(rows, OBJECTIVES, ARM, OTHER)[0]
    assert throughput.value == pytest.approx(1.5) and 1.4 < throughput.low < 1.5 < throughput.high < 1.6
    assert versus(rows, OBJECTIVES, ARM, EngineConfig.of({"seqs": 1})) == ()


class TestPlan:
    def chosen(self) -> list[TrialRecord]:
        return [run(ARM, figures(1500), 4, "sampler"), run(OTHER, figures(1400), 7, "sampler")]

    def test_rounds_are_interleaved_and_rotate(self) -> None:
        runs = plan(self.chosen(), BASE, 3)
        order = [[one.proposal.config for one in runs if one.round == number] for number in range(3)]
        assert order == [[BASE, ARM, OTHER], [ARM, OTHER, BASE], [OTHER, BASE, ARM]]
        seeds = [{one.arrival_seed for one in runs if one.round == number} for number in range(3)]
        assert all(len(one) == 1 for one in seeds) and len(set.union(*seeds)) == 3

    def test_a_rival_is_one_more_arm_unless_it_is_one_already(self) -> None:
        rival = EngineConfig.of({"seqs": 64})
        runs = plan(self.chosen(), BASE, 1, rivals={"published": rival, "today": BASE, "found": ARM})
        assert [one.proposal.config for one in runs] == [BASE, ARM, OTHER, rival]
        assert runs[-1].proposal.note == "to compare with: published"

    @pytest.mark.parametrize("cut", range(0, 12, 2))
    def test_an_interrupted_confirmation_goes_on_where_it_was(self, cut: int) -> None:
        runs = plan(self.chosen(), BASE, 3)
        history: list[TrialRecord] = []
        while (following := next_run(runs, history)) is not None:
            broken = len(history) == cut
            outcome: Outcome = Broken("interrupted", "Ctrl-C") if broken else figures(1000)
            history.append(record_of(len(history), following.proposal, outcome))
        assert len(history) == 9 + (cut < 9)
        assert [len(one) for one in rounds_of(history)] == [3, 3, 3]

    def test_finalists_are_the_ends_and_the_knee_and_never_the_baseline(self) -> None:
        def searched(number: int, throughput: float, ttft: float) -> TrialRecord:
            return run(EngineConfig.of({"n": number}), figures(throughput, ttft), number, "sampler")

        records = [
            run(BASE, figures(2000, 10), 0, "baseline"),
            searched(1, 1000, 1000),
            searched(2, 950, 120),
            searched(3, 500, 100),
            searched(4, 940, 500),
        ]
        assert [one.number for one in finalists(records, OBJECTIVES, 3, BASE)] == [1, 3, 2]
        assert len(finalists(records, OBJECTIVES, 9, BASE)) == 4

    def test_a_tie_in_the_search_prefers_fewer_changes(self) -> None:
        near = run(EngineConfig.of({"seqs": 512}), figures(1490), 1, "sampler")
        far = run(EngineConfig.of({"seqs": 999, "a": 1, "b": 2}), figures(1500), 2, "sampler")
        assert finalists([far, near], OBJECTIVES, 1, BASE) == [near]


@pytest.mark.parametrize(
    ("chance", "freedom", "value"),
    [(0.975, 2, 4.302653), (0.95, 6, 1.943180), (0.995, 30, 2.749996), (0.05, 4, -2.131847)],
)
def test_student_quantiles_agree_with_the_tables(chance: float, freedom: int, value: float) -> None:
    assert t_quantile(chance, freedom) == pytest.approx(value, abs=2e-6)
