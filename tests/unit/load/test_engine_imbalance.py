"""How data parallel ranks share the work, from the text of /metrics to the figures of a level."""

from __future__ import annotations

import pytest

from autotune.engine.prometheus import by_engine, parse_metrics, summed
from autotune.load.enginewatch import EngineWatch, Reading

RANKS = """\
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="m"}} {first}
vllm:generation_tokens_total{{engine="1",model_name="m"}} {second}
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.8
vllm:kv_cache_usage_perc{{engine="1",model_name="m"}} 0.2
vllm:request_success_total{{engine="0",finished_reason="length"}} 3
"""


def watched(*texts: str) -> dict[str, float]:
    watch = EngineWatch(None)
    for at, text in enumerate(texts):
        plain = {name.removeprefix("vllm:"): value for name, value in parse_metrics(text).items()}
        watch.readings.append(Reading(at, at, plain))
    return watch.figures()


def test_two_ranks_are_told_apart() -> None:
    figures = watched(RANKS.format(first=100, second=100), RANKS.format(first=400, second=200))
    assert figures["generation_tokens"] == 400
    assert figures["engine_0_generation_tokens"] == 300
    assert figures["engine_1_generation_tokens"] == 100
    assert figures["engine_imbalance"] == pytest.approx(1.5), "the busiest wrote 1.5 times its share"
    assert figures["kv_usage_max"] == 0.8, "of the fullest rank, not the sum"
    assert figures["kv_usage_mean"] == pytest.approx(0.5)


def test_one_engine_has_no_imbalance() -> None:
    alone = 'vllm:generation_tokens_total{engine="0"} 5\nvllm:kv_cache_usage_perc{engine="0"} 0.3\n'
    assert parse_metrics(alone) == {"vllm:generation_tokens_total": 5, "vllm:kv_cache_usage_perc": 0.3}
    figures = watched(alone, alone)
    assert not any(name.startswith("engine_") for name in figures)
    assert figures["kv_usage_max"] == 0.3


def test_engines_that_wrote_nothing_have_no_imbalance() -> None:
    figures = watched(RANKS.format(first=7, second=9), RANKS.format(first=7, second=9))
    assert "engine_imbalance" not in figures
    assert figures["engine_0_generation_tokens"] == 0


def test_sums_over_servers_leave_their_ranks_out() -> None:
    one, other = parse_metrics(RANKS.format(first=1, second=2)), parse_metrics(RANKS.format(first=10, second=20))
    both = summed((one, other)) | by_engine({"decode-0": summed((one,)), "decode-1": summed((other,))})
    assert both["vllm:generation_tokens_total"] == 33
    assert both['vllm:generation_tokens_total{engine="decode-1"}'] == 30
    assert 'vllm:generation_tokens_total{engine="0"}' not in both
    assert 'vllm:request_success_total{engine="decode-1"}' not in both, "only what tells how work is shared"
