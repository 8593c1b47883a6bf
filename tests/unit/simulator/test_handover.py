"""A prompt's KV cache that is handed from one simulated engine to another."""

from __future__ import annotations

import json

import pytest

from autotune.simulator import handover
from autotune.simulator.config import EngineSettings, resolve
from autotune.simulator.engine import EngineCore
from autotune.simulator.failures import ConfigRefusal
from autotune.simulator.memory import plan
from autotune.simulator.scheduler import Request, Scheduler


def settings(**flags: object) -> EngineSettings:
    return resolve({"model": "llama-3.1-8b", "max_model_len": 8192, **flags}, "h100", 2)


def connector(role: str) -> str:
    return json.dumps({"kv_connector": "NixlConnector", "kv_role": role})


def first_token_s(request: Request) -> float:
    core = EngineCore(settings(), plan(settings()))
    core.scheduler.add(request)
    end = core.start(0.0)
    assert end is not None
    core.finish(end)
    return end


def test_a_prompt_that_was_read_elsewhere_costs_one_token() -> None:
    own = first_token_s(Request(1, 4096, 8))
    handed = first_token_s(Request(1, 4096, 8, received=4095))
    alone = first_token_s(Request(1, 1, 8))
    assert handed < own / 8
    assert handed == pytest.approx(alone, rel=0.3)


def test_it_needs_its_memory_all_the_same() -> None:
    core = EngineCore(settings(), plan(settings()))
    core.scheduler.add(Request(1, 4096, 8, received=4095))
    core.start(0.0)
    assert core.scheduler.pool.used == 257, "16 tokens a block; the next step is scheduled ahead"
    assert core.scheduler.counters.prefix_hits == 0 and core.scheduler.counters.received_tokens == 4095


def test_a_preempted_request_is_read_again() -> None:
    scheduler = Scheduler(settings(), blocks=9)  # four for each prompt, and one to grow
    for number in (1, 2):
        scheduler.add(Request(number, 64, 40, received=63))
    prefills = []
    for step in range(60):
        batch = scheduler.schedule(float(step))
        if batch is not None:
            prefills += batch.prefill
            scheduler.complete(batch, float(step))
    assert scheduler.counters.preemptions == 1
    assert prefills[:2] == [(63, 1), (63, 1)], "one token each while the caches were there"
    assert prefills[2][0] == 0 and prefills[2][1] > 64, "the prompt and what had been written"


def test_the_way_takes_time_by_its_bytes() -> None:
    near, far = handover.transfer_seconds(settings(), 1000), handover.transfer_seconds(settings(), 9000)
    link = 0.6 * 450e9
    assert far - near == pytest.approx(8000 * settings().kv_bytes_per_token / link)
    halved = handover.transfer_seconds(settings(tensor_parallel_size=2), 9000)
    assert halved - 1.5e-3 == pytest.approx((far - 1.5e-3) / 2), "two cards send at once"


@pytest.mark.parametrize(("role", "sends", "receives"), [
    ("kv_producer", True, False), ("kv_consumer", False, True), ("kv_both", True, True),
])  # fmt: skip
def test_roles(role: str, sends: bool, receives: bool) -> None:
    made = settings(kv_transfer_config=connector(role))
    assert (handover.sends(made), handover.receives(made)) == (sends, receives)
    assert not handover.sends(settings()) and not handover.receives(settings())


@pytest.mark.parametrize(("text", "said"), [
    ("{", "Invalid JSON"),
    (json.dumps({"kv_connector": "NixlConnector"}), "specify kv_role when kv_connector is set"),
    (connector("kv_middle"), "Unsupported kv_role: kv_middle"),
])  # fmt: skip
def test_what_vllm_refuses_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigRefusal) as caught:
        settings(kv_transfer_config=text)
    assert said in " ".join(map(str, (caught.value, *caught.value.args, *getattr(caught.value, "lines", ()))))
