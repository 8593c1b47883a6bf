"""How wide engines are started for a search."""

from __future__ import annotations

from autotune.space.config import EngineConfig
from autotune.space.headroom import Headroom, started_with

DEFAULTS = {"max_num_batched_tokens": 8192, "max_num_seqs": 1024}


def test_batched_tokens_are_raised_to_what_runs_today_and_nothing_else_is():
    small = EngineConfig.of({"max_num_batched_tokens": 512, "max_num_seqs": 64, "quantization": "fp8"}, {"A": "1"})
    wide = EngineConfig.of({"max_num_batched_tokens": 4096, "max_num_seqs": 64, "quantization": "fp8"}, {"A": "1"})
    given = Headroom.of(EngineConfig.of({"max_num_batched_tokens": 4096, "max_num_seqs": 256}), DEFAULTS)
    assert given.widened(small) == wide
    assert given.widened(wide) is wide
    larger = EngineConfig.of({"max_num_batched_tokens": 16384})
    assert given.widened(larger) is larger
    open_ = EngineConfig.of({"max_num_seqs": 64})
    assert given.widened(open_) is open_, "what is left to the engine stays so"


def test_a_baseline_that_leaves_it_open_has_the_engines_default():
    assert Headroom.of(EngineConfig(), DEFAULTS).limits == (("max_num_batched_tokens", 8192),)
    assert Headroom.of(EngineConfig(), {}).limits == ()


def test_what_an_engine_says_tells_what_it_was_started_with():
    asked = EngineConfig.of({"max_num_batched_tokens": 512})
    assert started_with(asked, {"max_num_batched_tokens": 8192}) == EngineConfig.of({"max_num_batched_tokens": 8192})
    assert started_with(asked, {}) is asked
    clamped = EngineConfig.of({"max_num_batched_tokens": 9000})
    assert started_with(clamped, {"max_num_batched_tokens": 8192}) is clamped
