"""Which engine takes a request, without a socket."""

from __future__ import annotations

import pytest

from autotune.engine.dispatching import (
    REMOTE,
    Burden,
    Place,
    RouterSettings,
    decode_body,
    prefill_body,
    prompt_tokens,
    route,
)

P0, P1 = Place("prefill-0", "prefill", "http://p0"), Place("prefill-1", "prefill", "http://p1")
D0, D1 = Place("decode-0", "decode", "http://d0"), Place("decode-1", "decode", "http://d1")
LENGTH = RouterSettings((P0, P1, D0, D1), threshold=100)
HANDED = RouterSettings((P0, P1, D0, D1), threshold=100, transfer=True)
REPLICAS = RouterSettings((Place("replica-0", "replica", "http://r0"), Place("replica-1", "replica", "http://r1")))


def test_the_length_of_the_prompt_decides_from_the_threshold_on() -> None:
    assert route(LENGTH, Burden(), {"max_tokens": 8}, 99).answer == D0
    found = route(LENGTH, Burden(), {"max_tokens": 8}, 100)
    assert (found.answer, found.prefill) == (P0, None)


def test_a_cache_that_is_handed_on_needs_two_engines() -> None:
    found = route(HANDED, Burden(), {"max_tokens": 8}, 100)
    assert (found.prefill, found.answer) == (P0, D0)
    assert route(HANDED, Burden(), {"max_tokens": 8}, 99).prefill is None


@pytest.mark.parametrize("body", [{"max_tokens": 1}, {"prompt_logprobs": 0}, {"echo": True, "max_tokens": 9}])
def test_what_is_about_the_prompt_stays_with_the_engine_that_reads_it(body: dict[str, object]) -> None:
    found = route(HANDED, Burden(), body, 100)
    assert (found.answer, found.prefill) == (P0, None)


def test_prompts_weigh_by_their_tokens_and_answers_by_their_number() -> None:
    burden = Burden()
    burden.take(P0, 1000)
    burden.take(P1, 10)
    burden.take(P1, 10)
    assert route(LENGTH, burden, {}, 500).answer == P1, "fewer tokens wait there, though more requests"
    burden.take(D0, 90)
    burden.take(D1, 5)
    burden.take(D1, 5)
    assert route(LENGTH, burden, {}, 50).answer == D0, "fewer answers are written there"
    burden.done(P0, 1000)
    assert route(LENGTH, burden, {}, 500).answer == P0


def test_idle_replicas_take_turns() -> None:
    burden, seen = Burden(), []
    for _ in range(4):
        place = route(REPLICAS, burden, {}, 10_000).answer
        burden.take(place, 5)
        burden.done(place, 5)
        seen.append(place.name)
    assert seen == ["replica-0", "replica-1"] * 2


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"prompt": [1, 2, 3]}, 3),
        ({"prompt": "x" * 40}, 10),
        ({"prompt": ["x" * 40, "x" * 80]}, 20),
        ({"prompt": [[1, 2], [1, 2, 3]]}, 3),
        ({"messages": [{"content": "x" * 20}, {"content": [{"type": "text", "text": "x" * 20}]}]}, 10),
        ({"messages": "garbage"}, 0),
        ({}, 0),
    ],
)
def test_the_length_of_a_prompt(body: dict[str, object], tokens: int) -> None:
    assert prompt_tokens(body, 4.0) == tokens


def test_the_two_requests_of_a_hand_over() -> None:
    body = {"prompt": [1], "max_tokens": 64, "max_completion_tokens": 64, "min_tokens": 64, "stream": True,
            "stream_options": {"include_usage": True}, "temperature": 0}  # fmt: skip
    assert prefill_body(body) == {
        "prompt": [1], "max_tokens": 1, "max_completion_tokens": 1, "min_tokens": 1, "stream": False, "temperature": 0,
        "kv_transfer_params": REMOTE,
    }  # fmt: skip
    handed = {"do_remote_prefill": True, "remote_block_ids": [1], "remote_port": 5600}
    assert decode_body(body, {"kv_transfer_params": handed}) == {**body, "kv_transfer_params": handed}
    assert decode_body(body, {"kv_transfer_params": None}) is None
    assert decode_body(body, {}) is None
