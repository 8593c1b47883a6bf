"""Every configuration of a space stands under exactly one head."""

from __future__ import annotations

from autotune.outcome import Broken, Infeasible, Proposal, TrialRecord
from autotune.search.account import MOST_POINTS, SpaceAccount, account_of
from autotune.space.config import EngineConfig
from autotune.space.space import Parameter, SearchSpace
from autotune.testing.toy import measured, record_of, toy_space

FINE = measured({"output_throughput": 1000.0, "ttft_p95_ms": 100.0})
BASE = EngineConfig.of({"dtype": "bfloat16"})


def refuse(config: EngineConfig) -> Infeasible | None:
    return Infeasible("refused_kernel", "no int4 here", started=False) if config.get("weights") == "int4" else None


def tried(space: SearchSpace, **outcomes: object) -> list[TrialRecord]:
    point = {"seqs": 16, "batched": 512, "weights": "none", "graph": "none"}
    found = []
    for number, (name, outcome) in enumerate(outcomes.items()):
        config = space.config({**point, "seqs": 16 * 2**number}, BASE)
        assert isinstance(outcome, type(FINE) | Infeasible | Broken), name
        found.append(record_of(number, Proposal(config), outcome))
    return found


def heads(account: SpaceAccount) -> int:
    return (
        account.measured + account.infeasible + account.broken + account.refused_count + account.ruled_out
        + account.untried
    )  # fmt: skip


def test_the_heads_add_up_to_the_space() -> None:
    space = toy_space()
    history = tried(space, a=FINE, b=Infeasible("oom_kv_cache", "x"), c=Broken("stall", "x"))
    account = account_of(space, BASE, refuse, history)
    assert not account.sampled and heads(account) == account.looked_at == 6 * 6 * 3 * 4
    assert (account.measured, account.infeasible, account.broken, account.ruled_out) == (1, 1, 1, 0)
    assert account.causes == (("refused_kernel", 6 * 6 * 4),)
    assert account.sentence == (
        "Of 432 configurations of the space: 1 measured, 1 could not serve, 1 broke, 144 refused before a start, "
        "285 not tried."
    )


def test_what_a_trial_showed_to_fail_is_no_longer_untried() -> None:
    space = toy_space()
    history = tried(space, a=Infeasible("kernel", "no kernel", quarantine=(("graph", "none"),)))
    account = account_of(space, BASE, lambda _: None, history)
    assert account.causes == (("known_to_fail", 6 * 6 * 3 - 1),)
    assert account.example("known_to_fail").reason == "known to fail: graph=none"
    assert heads(account) == account.looked_at


def test_a_large_space_is_sampled_and_every_cause_keeps_an_example() -> None:
    wide = tuple(Parameter(f"p{n}", "ladder", tuple(range(10)), ordered=True) for n in range(6))

    def often_refused(config: EngineConfig) -> Infeasible | None:
        return Infeasible("refused_rare" if config.get("p0") == config.get("p1") == 9 else "refused_often", "x")

    account = account_of(SearchSpace("wide", wide), BASE, often_refused, [])
    assert account.sampled and account.looked_at <= MOST_POINTS < account.size
    assert len(account.refused) == 1000 < account.refused_count == heads(account)
    assert account.example("refused_rare").reason == "x"
    assert SpaceAccount.from_json(account.to_json()) == account
